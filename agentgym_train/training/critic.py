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
from agentgym_train.training.finite import check_gradient, check_size
from agentgym_train.training.microbatches import MicroBatches
from agentgym_train.training.packing import backbone_of, pack, packed_positions, shares_rows_of
from agentgym_train.training.update import PackedUpdate

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

    def forward(self, input_ids: Tensor, predictors: Tensor, **positions: Any) -> Tensor:
        """(S,) float32 values at `predictors`, which index the flattened input."""
        output = self.backbone(input_ids=input_ids, use_cache=False, **positions)
        hidden = output.last_hidden_state.flatten(0, 1)[predictors]  # (S, H)
        # In full precision: bf16 cannot resolve the differences between returns.
        values: Tensor = nn.functional.linear(
            hidden.float(), self.head.weight.float(), self.head.bias.float()
        )
        return values[:, 0]


class Critic:
    """Computes the values of tokens and learns them.

    It has its own optimizer and is prepared by the trainer's accelerator like the policy. It uses
    the same kind of micro-batches, and its gradient does not depend on the split.
    """

    def __init__(self, trainer: PackedUpdate, model: Any, algorithm: ActorCritic) -> None:
        accelerator = trainer.accelerator
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            raise ConfigError(
                "DeepSpeed supports one model, and a critic is a second one; use FSDP2 "
                "(examples/accelerate/fsdp2.yaml) or an algorithm without a critic"
            )
        self._trainer = trainer
        self._algorithm = algorithm
        self._shared = shares_rows_of(model)
        backbone = copy.deepcopy(backbone_of(model))
        if trainer.args.gradient_checkpointing:
            backbone.gradient_checkpointing_enable({"use_reentrant": False})
        hidden = model.config.get_text_config().hidden_size
        made = ValueModel(backbone, hidden).to(accelerator.device)
        self._model, self._optimizer = accelerator.prepare(
            made, torch.optim.AdamW(_groups(made, trainer.args), lr=algorithm.critic_learning_rate)
        )

    @torch.no_grad()
    def values(self, input_ids: Tensor, attention_mask: Tensor, trained: Tensor) -> Tensor:
        """(B, W) value before each trained token, 0 elsewhere; all inputs are (B, W)."""
        self._model.eval()
        found = torch.zeros(input_ids.shape, device=input_ids.device)  # (B, W)
        for rows in self._passes(attention_mask):
            found[rows] = self._scored(input_ids[rows], attention_mask[rows], trained[rows])
        return found

    def learn(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        old_values: Tensor,
        targets: CriticTargets,
        count: float,
    ) -> dict[str, float]:
        """Take one optimizer step towards the targets and return its metrics; inputs are (B, W).

        `count` is the number of target values of all processes.
        """
        self._model.train()
        processes = self._trainer.accelerator.num_processes
        # Gradients are averaged over processes, and each process divides by the total count.
        count = max(count, 1.0) / processes
        passes = self._passes(attention_mask)
        lost = torch.zeros((), device=input_ids.device)
        for number, rows in enumerate(passes, 1):
            mask = targets.mask[rows]
            with self._trainer.synced(self._model, number == len(passes)):
                values = self._scored(input_ids[rows], attention_mask[rows], mask)
                loss = value_loss(
                    values,
                    old_values[rows],
                    CriticTargets(targets.returns[rows], mask),
                    clip=self._algorithm.value_clip,
                    count=count,
                )
                # The accelerator would divide by the policy's gradient accumulation steps.
                loss.backward()
            lost += loss.detach()
        norm = self._trainer.accelerator.clip_grad_norm_(self._model.parameters(), _MAX_GRAD_NORM)
        check_gradient(self._trainer, norm, "critic's gradient norm")
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

    def _passes(self, attention_mask: Tensor) -> MicroBatches:
        lengths = attention_mask.sum(1).tolist()
        return self._trainer.passes(lengths, shared_rows=self._shared)

    def _scored(self, input_ids: Tensor, attention_mask: Tensor, trained: Tensor) -> Tensor:
        """(R, W) value before each trained token, 0 elsewhere."""
        layout = pack(input_ids, attention_mask, trained, shared_rows=self._shared)
        with self._trainer.accelerator.autocast():
            positions = packed_positions(layout)
            values = self._model(layout.input_ids, layout.predictors, **positions)  # (S,)
        return values.new_zeros(layout.scored.shape).masked_scatter(layout.scored, values)

    def explained_variance(self, values: Tensor, targets: CriticTargets) -> dict[str, float]:
        """The share of the returns' variance that the values explain. A collective."""
        returns = targets.returns[targets.mask].double()  # (M,)
        missed = returns - values[targets.mask]  # (M,)
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
