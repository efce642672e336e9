"""Computes per-token advantages of a step's episodes, and trains the critic.

The algorithm's batch contains the episodes of all processes; each process keeps its own rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.trainer_pt_utils import get_parameter_names

from agentgym_env.errors import ConfigError
from agentgym_env.trajectory import Trajectory
from agentgym_train.algorithms import Algorithm
from agentgym_train.algorithms.base import TokenBatch, advantages_per_env
from agentgym_train.algorithms.gae import ActorCritic, CriticTargets, value_loss
from agentgym_train.models.distributed import gathered
from agentgym_train.training.batch import (
    OverlongPenalty,
    Rows,
    joined_batches,
    minibatch_of,
    rows_of,
    token_batch,
)
from agentgym_train.training.finite import check_gradient, check_size
from agentgym_train.training.microbatches import (
    MicroBatches,
    backbone_of,
    pack,
    packed_positions,
    shares_rows_of,
)
from agentgym_train.training.update import Counts, PackedUpdate

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


Kind = Literal["auto", "off", "token", "geometric"]


@dataclass(frozen=True, slots=True)
class ImportanceSampling:
    """Truncated importance sampling between engine and trainer.

    An engine may use other kernels or another precision than the trainer, so its samples are
    off-policy even with the same weights. pi_T is the trainer's probability before the update and
    pi_E the engine's. The advantage of token t is multiplied by

    - `token`: min(pi_T(t) / pi_E(t), most) (truncated importance sampling, arXiv:2303.17651, as in
      TRL and verl), or
    - `geometric`: the same, and 0 in an episode where the geometric mean of the tokens' weights is
      above `band` or below 1 / `band`. A mean does not depend on the episode's length, unlike the
      product: docs/training.md compares them.

    `auto` is `off` if the engine samples with the trainer's own model, and `token` otherwise.
    """

    kind: Kind = "auto"
    most: float = 3.0
    band: float = 1.05

    def is_needed(self, engine_is_exact: bool) -> bool:
        """Whether the trainer has to score the engine's samples."""
        return self.kind in ("token", "geometric") or (self.kind == "auto" and not engine_is_exact)

    def ratios(self, trainer: Tensor, engine: Tensor, mask: Tensor) -> Tensor:
        """(B, T) importance weights from (B, T) log-probabilities; 1 off the mask."""
        difference = torch.where(mask, trainer - engine, 0.0)  # (B, T)
        weights = difference.exp().clamp(max=self.most)  # (B, T)
        if self.kind == "geometric":
            mean = difference.sum(1) / mask.sum(1).clamp(min=1)  # (B,)
            kept = (mean.abs() <= math.log(self.band)).to(weights.dtype)  # (B,)
            weights = torch.where(mask, weights * kept[:, None], 1.0)
        return weights

    def metrics(self, trainer: Tensor, engine: Tensor, mask: Tensor) -> dict[str, float]:
        """The shares of tokens that are excluded and truncated, and the effective sample size.

        The last is the sum of the weights squared over the sum of their squares, as a share of the
        number of tokens: 1 if all weights are equal.
        """
        weights = self.ratios(trainer, engine, mask)[mask].double()  # (N,)
        if not weights.numel():
            return {}
        truncated = (trainer - engine)[mask] > math.log(self.most)
        squares = float(weights.square().sum()) * weights.numel()
        return {
            "importance/excluded": float((weights == 0).double().mean()),
            "importance/truncated": float(truncated.double().mean()),
            "importance/effective": float(weights.sum().square()) / squares if squares else 0.0,
        }


def drift(trainer: Tensor, engine: Tensor, mask: Tensor) -> dict[str, float]:
    """Metrics of the difference between engine and trainer on a step's sampled tokens."""
    difference = (trainer - engine)[mask]  # (N,)
    if not difference.numel():
        return {}
    return {
        "engine/logprob_difference_mean": float(difference.abs().mean()),
        "engine/logprob_difference_max": float(difference.abs().max()),
        # The k3 estimator (http://joschu.net/blog/kl-approx.html) of KL(engine, trainer)
        "engine/kl": float((difference.exp() - 1 - difference).mean()),
    }


class StepAdvantages:
    """Computes the advantages of a step and updates the critic, if the algorithm has one."""

    def __init__(
        self,
        trainer: PackedUpdate,
        algorithm: Algorithm,
        *,
        group_size: int,
        trained: frozenset[str],
        dummy_id: int,
        correction: ImportanceSampling,
        engine_is_exact: bool,
        minibatches: int = 1,
        epochs: int = 1,
        overlong: OverlongPenalty | None = None,
        env_of: Callable[[Trajectory], int] | None = None,
    ) -> None:
        """With `env_of`, the number of an episode's environment, each has its own whitening."""
        self._env_of = env_of
        self._trainer = trainer
        self._algorithm = algorithm
        self._group_size = group_size
        self._trained = trained
        self._dummy_id = dummy_id
        self._correction = correction
        self._corrects = correction.is_needed(engine_is_exact)
        self._minibatches, self._epochs = minibatches, epochs
        self._overlong = overlong
        self.critic: Critic | None = None
        if isinstance(algorithm, ActorCritic):
            model = trainer.accelerator.unwrap_model(trainer.model)
            self.critic = Critic(trainer, model, algorithm)
        self.metrics: dict[str, float] = {}
        """Metrics of the last step: of the critic, and of the difference engine to trainer."""
        self.counts: list[Counts] = []
        """Counts of the last step's mini-batches."""
        self.per_token = torch.zeros(0, 0)
        """(B, V) advantages of this process's episodes in the last step, without importance
        sampling."""

    @torch.no_grad()
    def advantages(
        self, output: Mapping[str, Any], trajectories: Sequence[Trajectory], rows: Rows
    ) -> Tensor:
        """(R, T) advantages for the rows of this process, from TRL's batch `output`.

        A collective. The algorithm sees the B episodes; V is the width of their joined rows.
        """
        self.metrics = {}
        device, width = output["completion_ids"].device, output["completion_ids"].shape[1]
        own = token_batch(
            trajectories,
            self._group_size,
            rows.width(width),
            self._dummy_id,
            self._trained,
            self._overlong,
            None if self._env_of is None else list(map(self._env_of, trajectories)),
        )
        mask = own.trained.to(device)  # (B, V)
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)  # (R, P + T)
        attention = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)  # (R, P + T)
        reference = output.get("ref_per_token_logps")  # (R, T)
        given = {"ref_logprobs": None if reference is None else rows.to_episodes(reference)}
        if self._algorithm.needs_reference or self._corrects:
            policy = self._policy_logprobs(output)
            given["policy_logprobs"] = rows.to_episodes(policy)
        if self.critic is not None:
            scored = pad(rows.to_rows(mask, width), (ids.shape[1] - width, 0))  # (R, P + T)
            values = self.critic.values(ids, attention, scored)[:, -width:]  # (R, T)
            given["values"] = rows.to_episodes(values)
        own = _with(own, given)
        shares = gathered(own)
        every = joined_batches(shares)
        rank = self._trainer.accelerator.process_index
        numbers = self._minibatch_of_episodes(every, rows.episodes)  # (all B,)
        self.counts = [
            Counts(int(every.trainable[here].sum()), int(every.trained[here].sum()))
            for here in (numbers == number for number in range(self._minibatches))
        ]
        found = rows_of(advantages_per_env(self._algorithm, every), shares, rank).to(
            device
        )  # (B, V)
        if self.critic is not None:
            self._update_critic(ids, attention, width, rows, own, every, shares, numbers)
        self.per_token = found.cpu()
        if self._corrects:
            found = found * self._ratios(own, mask)
        return rows.to_rows(found, width)  # (R, T)

    def _update_critic(
        self,
        ids: Tensor,
        attention: Tensor,
        width: int,
        rows: Rows,
        own: TokenBatch,
        every: TokenBatch,
        shares: Sequence[TokenBatch],
        numbers: Tensor,
    ) -> None:
        """Update the critic with each mini-batch, as often as the policy; `numbers` is (all B,)."""
        assert self.critic is not None and isinstance(self._algorithm, ActorCritic)
        assert own.values is not None
        targets = self._algorithm.critic_targets(every)
        rank = self._trainer.accelerator.process_index

        def columns(tensor: Tensor) -> Tensor:
            return pad(rows.to_rows(tensor, width), (ids.shape[1] - width, 0)).to(ids.device)

        mine = CriticTargets(
            columns(rows_of(targets.returns, shares, rank)),  # (R, P + T)
            columns(rows_of(targets.mask, shares, rank)),  # (R, P + T)
        )
        old = columns(own.values)  # (R, P + T)
        owners = torch.tensor(rows.minibatch)  # (R,)
        made = []
        for number in list(range(self._minibatches)) * self._epochs:
            chosen = (owners == number).nonzero()[:, 0].to(ids.device)  # (rows,)
            count = float(targets.mask[numbers == number].sum())
            here = CriticTargets(mine.returns[chosen], mine.mask[chosen])
            with torch.enable_grad():
                made.append(
                    self.critic.learn(ids[chosen], attention[chosen], old[chosen], here, count)
                )
        self.metrics |= {
            name: sum(metrics[name] for metrics in made) / len(made) for name in made[0]
        }
        self.metrics |= self.critic.explained_variance(old, mine)

    def _policy_logprobs(self, output: Mapping[str, Any]) -> Tensor:
        """(R, T) log-probabilities of the trainer's policy before the update."""
        known = output.get("old_per_token_logps")
        return self._trainer.logprobs(output) if known is None else known

    def _ratios(self, own: TokenBatch, mask: Tensor) -> Tensor:
        """(B, V) importance weights of the engine's samples."""
        assert own.logprobs is not None and own.policy_logprobs is not None
        trainer = own.policy_logprobs.to(mask.device)  # (B, V)
        engine = own.logprobs.to(mask.device)  # (B, V)
        self.metrics |= drift(trainer, engine, mask)
        self.metrics |= self._correction.metrics(trainer, engine, mask)
        return self._correction.ratios(trainer, engine, mask)

    def _minibatch_of_episodes(self, every: TokenBatch, episodes: int) -> Tensor:
        """(B,) mini-batch of each episode of all processes; each process has `episodes`."""
        order = range(len(every.trainable))
        return torch.tensor(
            [minibatch_of(i % episodes, episodes, self._minibatches) for i in order]
        )


def _with(batch: TokenBatch, given: Mapping[str, Tensor | None]) -> TokenBatch:
    on_cpu: dict[str, Any] = {
        name: value.float().cpu() for name, value in given.items() if value is not None
    }
    return replace(batch, **on_cpu)
