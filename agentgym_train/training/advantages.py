"""Computes per-token advantages of a step's episodes.

The algorithm's batch contains the episodes of all processes; each process keeps its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentgym_env.trajectory import Trajectory
from agentgym_train.algorithms import Algorithm
from agentgym_train.algorithms.base import TokenBatch, advantages_per_env
from agentgym_train.algorithms.gae import ActorCritic, CriticTargets
from agentgym_train.models.distributed import gathered
from agentgym_train.training.batch import (
    OverlongPenalty,
    Rows,
    joined_batches,
    minibatch_of,
    rows_of,
    token_batch,
)
from agentgym_train.training.critic import Critic
from agentgym_train.training.importance_sampling import ImportanceSampling, drift
from agentgym_train.training.update import Counts, PackedUpdate


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
