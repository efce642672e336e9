"""Stops a training at the first number that is not finite, before its weights are saved.

transformers logs such a loss as 0.0, and trains on and saves whatever the weights have become.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import Trainer

from agentgym_env.errors import AgentGymError
from agentgym_train.models.distributed import gathered
from agentgym_train.models.setup import evaluating, short_text, uncompiled
from agentgym_train.training.checkpoints import last_checkpoint


class NotFinite(AgentGymError, RuntimeError):
    """A loss, a gradient, a sampled log-probability or the weights are not finite."""

    exit_status = 1


def check_loss(trainer: Trainer, loss: Tensor) -> None:
    """Raise `NotFinite` if the loss of a process is not finite. A collective."""
    wrong = next((value for value in gathered(float(loss)) if not math.isfinite(value)), None)
    if wrong is not None:
        raise not_finite(trainer, f"the loss of step {trainer.state.global_step + 1} is {wrong}")


def check_gradient(trainer: Trainer, norm: Any, step: int, what: str = "gradient norm") -> None:
    """Raise `NotFinite` for a norm that is not finite; it is that of all processes."""
    value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if not math.isfinite(value):
        raise not_finite(trainer, f"the {what} of step {step} is {value}")


def check_weights(trainer: Trainer) -> None:
    """Raise `NotFinite` if the policy's weights cannot be used. A collective."""
    step = trainer.state.global_step
    model = trainer.accelerator.unwrap_model(trainer.model)
    check_size(trainer, model, f"the weights after step {step}")
    with trainer.accelerator.autocast():
        is_finite = _answers(model, trainer.accelerator.device)
    if not all(gathered(is_finite)):
        raise not_finite(trainer, f"the model's log-probabilities after step {step} are not finite")


def check_size(trainer: Trainer, model: Any, what: str) -> None:
    """Raise `NotFinite` if the norm of a trained weight is not finite. A collective.

    The squares of larger numbers than 1.8e19, which layers compute too, are infinite in float32.
    """
    own = [weight for weight in model.parameters() if weight.requires_grad]
    norms = [
        torch.linalg.vector_norm(
            part.to_local() if isinstance(part, DTensor) else part, dtype=torch.float32
        )
        for part in map(torch.detach, own)
    ]
    is_finite = not norms or bool(torch.stack(norms).isfinite().all())
    if not all(gathered(is_finite)):
        raise not_finite(trainer, f"{what} are not finite, or too large to compute with")


@torch.no_grad()
def _answers(model: Any, device: torch.device) -> bool:
    """Whether the model has finite log-probabilities after a short text."""
    with evaluating(model), uncompiled(model):
        logits = model(input_ids=short_text(model, device), use_cache=False).logits  # (1, P, V)
    # A model may exclude tokens with logits of -inf.
    return bool(logits.float().logsumexp(-1).isfinite().all())


def not_finite(trainer: Trainer, fact: str) -> NotFinite:
    """The error for a fact, with the last checkpoint and a remedy."""
    last = last_checkpoint(Path(str(trainer.args.output_dir)))
    saved = "There is no checkpoint yet" if last is None else f"The last good checkpoint is {last}"
    model = "" if last is None else f"model={last}, "
    return NotFinite(
        f"{fact}, so the run stops and saves no weights. {saved}. Start a new run with {model}"
        f"a learning_rate below {trainer.args.learning_rate:g} and trainer_args.max_grad_norm "
        f"above 0 (it is {trainer.args.max_grad_norm:g}); --resume repeats the steps after the "
        "last checkpoint with the same settings"
    )
