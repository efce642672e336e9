"""From a step's episodes to an advantage a token: the algorithm, with all that it asks for.

The batch the algorithm sees is that of all processes; each keeps its own rows of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentgym_env.trajectory import Trajectory
from agentgym_train.algorithms import Algorithm
from agentgym_train.algorithms.actor_critic import ActorCritic, CriticTargets
from agentgym_train.algorithms.base import TokenBatch
from agentgym_train.batch import token_batch
from agentgym_train.correction import Correction, drift
from agentgym_train.critic import Critic
from agentgym_train.global_batch import joined, rows_of
from agentgym_train.losses import MEANS_OVER_EPISODES
from agentgym_train.ranks import gathered
from agentgym_train.update import PackedUpdate


class Credit:
    """Gives advantages, and teaches the critic on the way."""

    def __init__(
        self,
        trainer: PackedUpdate,
        algorithm: Algorithm,
        *,
        group_size: int,
        trained: frozenset[str],
        filler_id: int,
        correction: Correction,
        engine_is_exact: bool,
    ) -> None:
        self._trainer = trainer
        self._algorithm = algorithm
        self._group_size = group_size
        self._trained = trained
        self._filler_id = filler_id
        self._correction = correction
        self._corrects = correction.is_needed(engine_is_exact)
        self.critic: Critic | None = None
        if isinstance(algorithm, ActorCritic):
            model = trainer.accelerator.unwrap_model(trainer.model)
            self.critic = Critic(trainer, model, algorithm)
        self.figures: dict[str, float] = {}
        """Of the last step: the critic's, and how far the engine was from the trainer."""

    @torch.no_grad()
    def advantages(self, output: Mapping[str, Any], trajectories: Sequence[Trajectory]) -> Tensor:
        """(B, T) for this process's episodes, from what TRL made of them. A collective."""
        self.figures = {}
        device, width = output["completion_ids"].device, output["completion_ids"].shape[1]
        own = token_batch(trajectories, self._group_size, width, self._filler_id, self._trained)
        mask = own.trained.to(device)  # (B, T)
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)  # (B, P + T)
        attention = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)  # (B, P + T)
        given: dict[str, Tensor | None] = {"ref_logprobs": output.get("ref_per_token_logps")}
        if self.critic is not None:
            scored = pad(mask, (ids.shape[1] - width, 0))  # (B, P + T)
            given["values"] = self.critic.values(ids, attention, scored)[:, -width:]
        own = _with(own, given)
        shares = gathered(own)
        every = joined(shares)
        rank = self._trainer.accelerator.process_index
        found = rows_of(self._algorithm.advantages(every), shares, rank).to(device)  # (B, T)
        if self.critic is not None:
            self._teach(ids, attention, own, every, shares)
        if self._corrects:
            found = found * self._ratios(output, own, mask)
        return found * self._scale(every)

    def _teach(
        self,
        ids: Tensor,
        attention: Tensor,
        own: TokenBatch,
        every: TokenBatch,
        shares: Sequence[TokenBatch],
    ) -> None:
        """Let the critic take its step."""
        assert self.critic is not None and isinstance(self._algorithm, ActorCritic)
        assert own.values is not None
        targets = self._algorithm.critic_targets(every)
        rank, before = self._trainer.accelerator.process_index, ids.shape[1] - own.values.shape[1]

        def columns(tensor: Tensor) -> Tensor:
            return pad(tensor, (before, 0)).to(ids.device)  # (B, P + T)

        mine = CriticTargets(
            columns(rows_of(targets.returns, shares, rank)),
            columns(rows_of(targets.mask, shares, rank)),
        )
        with torch.enable_grad():
            self.figures |= self.critic.learn(
                ids, attention, columns(own.values), mine, float(targets.mask.sum())
            )

    def _ratios(self, output: Mapping[str, Any], own: TokenBatch, mask: Tensor) -> Tensor:
        """(B, T) what the engine's sampling is weighed by."""
        assert own.logprobs is not None
        trainer = output.get("old_per_token_logps")
        if trainer is None:
            trainer = self._trainer.logprobs(output)  # (B, T)
        engine = own.logprobs.to(mask.device)  # (B, T)
        self.figures |= drift(trainer, engine, mask)
        return self._correction.ratios(trainer, engine, mask)

    def _scale(self, every: TokenBatch) -> float:
        """Episodes that do not train count in TRL's means over episodes; this takes them out."""
        if self._algorithm.loss.loss_type not in MEANS_OVER_EPISODES:
            return 1.0
        return len(every.teaches) / max(1, int(every.teaches.sum()))


def _with(batch: TokenBatch, given: Mapping[str, Tensor | None]) -> TokenBatch:
    on_cpu: dict[str, Any] = {
        name: value.float().cpu() for name, value in given.items() if value is not None
    }
    return replace(batch, **on_cpu)
