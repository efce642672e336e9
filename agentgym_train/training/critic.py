"""The critic: a model of the values of tokens, with an optimizer of its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.trainer_pt_utils import get_parameter_names

from agentgym_env.errors import ConfigError
from agentgym_train.algorithms.gae import ActorCritic, CriticTargets, value_loss
from agentgym_train.models.weights import base_model
from agentgym_train.training.finite import check_gradient, check_size
from agentgym_train.training.microbatches import MicroBatcher
from agentgym_train.training.rows import Layout, TokenRows

_MAX_GRAD_NORM = 1.0

_WEIGHTS = "critic.safetensors"

_OPTIMIZER = "critic_optimizer.pt"


class ValueModel(nn.Module):
    """A backbone with a linear value head, initialized to 0 so that all initial values are 0."""

    def __init__(self, backbone: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, predictors: Tensor, **inputs: Any) -> Tensor:
        """(S,) float32 values at `predictors`, which index the flattened input."""
        output = self.backbone(use_cache=False, **inputs)
        hidden = output.last_hidden_state.flatten(0, 1)[predictors]  # (S, H)
        # In full precision: bf16 cannot resolve the differences between returns.
        values: Tensor = nn.functional.linear(
            hidden.float(), self.head.weight.float(), self.head.bias.float()
        )
        return values[:, 0]


class Critic:
    """Computes the values of tokens and learns them.

    It has its own optimizer and is prepared by the trainer's accelerator like the policy. It uses
    the same micro-batches, and its gradient does not depend on the split.
    """

    def __init__(
        self, trainer: Any, model: Any, algorithm: ActorCritic, microbatches: MicroBatcher
    ) -> None:
        accelerator = trainer.accelerator
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            raise ConfigError(
                "DeepSpeed supports one model, and a critic is a second one; use FSDP2 "
                "(examples/accelerate/fsdp2.yaml) or an algorithm without a critic"
            )
        self._trainer = trainer
        self._algorithm = algorithm
        self._microbatches = microbatches
        backbone = copy.deepcopy(base_model(model).base_model)
        if trainer.args.gradient_checkpointing:
            backbone.gradient_checkpointing_enable({"use_reentrant": False})
        hidden = model.config.get_text_config().hidden_size
        made = ValueModel(backbone, hidden).to(accelerator.device)
        self._model, self._optimizer = accelerator.prepare(
            made, torch.optim.AdamW(_groups(made, trainer.args), lr=algorithm.critic_learning_rate)
        )

    @torch.no_grad()
    def values(self, rows: TokenRows) -> Tensor:
        """(R, W) value before each trained token, 0 elsewhere. A collective."""
        self._model.eval()
        return self._microbatches.collected(rows, self._scored)

    def learn(self, rows: TokenRows, count: float) -> dict[str, float]:
        """Take one optimizer step towards the returns of R rows, and return its metrics.

        `rows` has values and returns, and its trained tokens are those whose value is learned.
        `count` is the number of those of all processes. A collective.
        """
        self._model.train()
        processes = self._trainer.accelerator.num_processes
        # Gradients are averaged over processes, and each process divides by the total count.
        count = max(count, 1.0) / processes
        lost = torch.zeros((), device=rows.ids.device)
        for part in self._microbatches.split(rows):
            own = rows.take(part.rows)
            assert own.values is not None and own.returns is not None
            with self._microbatches.waiting(self._model, is_last=part.is_last):
                loss = value_loss(
                    self._scored(own),
                    own.values,
                    CriticTargets(own.returns, own.trained),
                    clip=self._algorithm.value_clip,
                    count=count,
                ) * float(part.is_real)
                # The accelerator would divide by the policy's gradient accumulation steps.
                loss.backward()
            lost += loss.detach()
        norm = self._trainer.accelerator.clip_grad_norm_(self._model.parameters(), _MAX_GRAD_NORM)
        check_gradient(
            self._trainer, norm, self._trainer.state.global_step + 1, "critic's gradient norm"
        )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        whole: Tensor = self._trainer.accelerator.reduce(lost / processes, reduction="sum")
        return {"critic/loss": float(whole), "critic/grad_norm": float(norm)}

    def check_weights(self) -> None:
        """Raise `NotFinite` if the weights cannot be used. A collective."""
        step = self._trainer.state.global_step
        check_size(self._trainer, self._model, f"the critic's weights after step {step}")

    def save(self, folder: Path) -> None:
        """Write weights and optimizer to a checkpoint's folder. A collective."""
        accelerator = self._trainer.accelerator
        weights = accelerator.get_state_dict(self._model)
        state = self._optimizer.state_dict()
        if accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            plain = {name: value.contiguous().clone() for name, value in weights.items()}
            save_file(plain, folder / _WEIGHTS)
            torch.save(state, folder / _OPTIMIZER)

    def load(self, folder: Path) -> None:
        """Load weights and optimizer from a checkpoint's folder."""
        if not (folder / _WEIGHTS).is_file():
            raise ConfigError(
                f"the checkpoint {folder} has no critic; it is of another algorithm. Start a "
                "new run with this checkpoint as its model"
            )
        model = self._trainer.accelerator.unwrap_model(self._model)
        model.load_state_dict(load_file(folder / _WEIGHTS))
        self._optimizer.load_state_dict(torch.load(folder / _OPTIMIZER, weights_only=True))

    def _scored(self, rows: TokenRows) -> Tensor:
        """(R, W) value before each trained token, 0 elsewhere."""
        layout = Layout.from_rows(rows, shared_rows=self._microbatches.shared_rows)
        with self._trainer.accelerator.autocast():
            values = self._model(layout.predictors, **layout.arguments())  # (S,)
        return layout.spread(values)

    def explained_variance(self, rows: TokenRows) -> dict[str, float]:
        """The share of the returns' variance that the values explain. A collective."""
        assert rows.values is not None and rows.returns is not None
        returns = rows.returns[rows.trained].double()  # (M,)
        missed = returns - rows.values[rows.trained]  # (M,)
        sums = [t.sum() for t in (torch.ones_like(returns), returns, missed)]
        sums += [returns.square().sum(), missed.square().sum()]
        whole: Tensor = self._trainer.accelerator.reduce(torch.stack(sums), reduction="sum")  # (5,)
        count, first, missed_first, second, missed_second = whole.tolist()
        # These are variances multiplied by the square of the count.
        variance = count * second - first**2
        if count <= 1 or variance <= 1e-9 * count * second:
            return {}
        unexplained = (count * missed_second - missed_first**2) / variance
        return {"critic/explained_variance": 1 - unexplained}


def _groups(model: nn.Module, args: Any) -> list[dict[str, Any]]:
    """Parameter groups with weight decay as in the policy: not on biases and norms."""
    decayed = set(get_parameter_names(model, [nn.LayerNorm], ["bias", "layernorm", "rmsnorm"]))
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    return [
        {"params": [v for n, v in named if n in decayed], "weight_decay": args.weight_decay},
        {"params": [v for n, v in named if n not in decayed], "weight_decay": 0.0},
    ]
