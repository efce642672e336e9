"""Advantages of a step: scores, importance sampling, the algorithm and the critic.

The algorithm's batch contains the episodes of all processes; each process keeps its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from agentgym_env.trajectory import Trajectory
from agentgym_train.algorithms import Algorithm
from agentgym_train.algorithms.base import TokenBatch, advantages_per_env
from agentgym_train.algorithms.gae import ActorCritic
from agentgym_train.models.distributed import gathered
from agentgym_train.training.batch import (
    OverlongPenalty,
    Rows,
    joined_batches,
    local_rows,
    minibatch_of,
    token_batch,
)
from agentgym_train.training.critic import Critic
from agentgym_train.training.rows import TokenRows
from agentgym_train.training.update import Update

Kind = Literal["auto", "off", "token", "geometric", "clipped"]


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
      product: docs/notes/numerics.md compares them; or
    - `clipped`: the weights of `token`, and 0 where the policy has already moved by more than
      `epsilon` towards what the advantage asks for, which is where PPO's clipped objective
      (arXiv:1707.06347) has no gradient. Without it, old samples push the policy on and on.

    `auto` is `off` if the engine samples with the trainer's own model, and `token` otherwise.
    """

    kind: Kind = "auto"
    most: float = 3.0
    band: float = 1.05
    epsilon: float = 0.2

    def is_needed(self, engine_is_exact: bool) -> bool:
        """Whether the trainer has to score the engine's samples."""
        return self.kind in ("token", "geometric", "clipped") or (
            self.kind == "auto" and not engine_is_exact
        )

    def ratios(self, trainer: Tensor, engine: Tensor, mask: Tensor) -> Tensor:
        """(B, T) importance weights from (B, T) log-probabilities; 1 off the mask."""
        difference = torch.where(mask, trainer - engine, 0.0)  # (B, T)
        weights = difference.exp().clamp(max=self.most)  # (B, T)
        if self.kind == "geometric":
            mean = difference.sum(1) / mask.sum(1).clamp(min=1)  # (B,)
            kept = (mean.abs() <= math.log(self.band)).to(weights.dtype)  # (B,)
            weights = torch.where(mask, weights * kept[:, None], 1.0)
        return weights

    def clipped(self, ratios: Tensor, advantages: Tensor) -> Tensor:
        """(B, T) bool, whether the policy has moved far enough from the one that sampled."""
        if self.kind != "clipped":
            return torch.zeros_like(ratios, dtype=torch.bool)
        rises = (advantages > 0) & (ratios > 1 + self.epsilon)
        return rises | ((advantages < 0) & (ratios < 1 - self.epsilon))

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


def ratio_metrics(trainer: Tensor, engine: Tensor, mask: Tensor) -> dict[str, float]:
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


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a mini-batch, over all processes."""

    episodes: int
    """Episodes that are trained on."""
    tokens: int
    """Trained tokens."""


class StepAdvantages:
    """Computes the advantages of a step and updates the critic, if the algorithm has one."""

    def __init__(
        self,
        update: Update,
        algorithm: Algorithm,
        *,
        group_size: int,
        trained: frozenset[str],
        pad_id: int,
        correction: ImportanceSampling,
        engine_is_exact: bool,
        minibatches: int = 1,
        epochs: int = 1,
        overlong: OverlongPenalty | None = None,
        env_of: Callable[[Trajectory], int] | None = None,
        critic: Critic | None = None,
    ) -> None:
        """With `env_of`, the number of an episode's environment, each has its own whitening."""
        self._env_of = env_of
        self._update = update
        self._algorithm = algorithm
        self._group_size = group_size
        self._trained = trained
        self._pad_id = pad_id
        self._correction = correction
        self._corrects = correction.is_needed(engine_is_exact)
        self._minibatches, self._epochs = minibatches, epochs
        self._overlong = overlong
        self.critic = critic
        self.metrics: dict[str, float] = {}
        """Metrics of the last step: of the critic, and of the difference engine to trainer."""
        self.counts: list[Counts] = []
        """Counts of the last step's mini-batches."""
        self.per_token = torch.zeros(0, 0)
        """(B, V) advantages of this process's episodes in the last step, without importance
        sampling."""

    @torch.no_grad()
    def advantages(
        self, batch: TokenRows, trajectories: Sequence[Trajectory], rows: Rows
    ) -> Tensor:
        """(R, W) advantages for the rows of this process. A collective.

        `batch` are the tokens of `rows`. The algorithm sees the B episodes; V is the width of their
        joined rows.
        """
        self.metrics = {}
        own = token_batch(
            trajectories,
            self._group_size,
            rows.width,
            self._pad_id,
            self._trained,
            self._overlong,
            None if self._env_of is None else list(map(self._env_of, trajectories)),
        )
        given = {"ref_logprobs": batch.reference, "policy_logprobs": batch.old}
        if batch.old is None and (self._algorithm.needs_reference or self._corrects):
            given["policy_logprobs"] = self._update.logprobs(batch)
        if self.critic is not None:
            given["values"] = self.critic.values(batch)
        scored: dict[str, Any] = {
            name: rows.to_episodes(value.float().cpu())
            for name, value in given.items()
            if value is not None
        }
        own = replace(own, **scored)
        shares = gathered(own)
        every = joined_batches(shares)
        rank = self._update.rank
        numbers = self._minibatch_of_episodes(every, rows.episodes)  # (all B,)
        self.counts = [
            Counts(int(every.trainable[here].sum()), int(every.trained[here].sum()))
            for here in (numbers == number for number in range(self._minibatches))
        ]
        found = local_rows(advantages_per_env(self._algorithm, every), shares, rank)  # (B, V)
        if self.critic is not None:
            self._update_critic(batch, rows, own, every, shares, numbers)
        self.per_token = found
        if self._corrects:
            ratios = self._ratios(own)  # (B, V)
            clipped = self._correction.clipped(ratios, found)  # (B, V)
            if self._correction.kind == "clipped":
                self.metrics["importance/clipped"] = float(clipped[own.trained].float().mean())
            found = found * ratios.masked_fill(clipped, 0.0)
        return rows.to_rows(found, batch.ids)

    def _update_critic(
        self,
        batch: TokenRows,
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
        rank = self._update.rank
        mine = replace(
            batch,
            trained=rows.to_rows(local_rows(targets.mask, shares, rank), batch.ids),
            returns=rows.to_rows(local_rows(targets.returns, shares, rank), batch.ids),
            values=rows.to_rows(own.values, batch.ids),
        )
        made = []
        for number in list(range(self._minibatches)) * self._epochs:
            count = float(targets.mask[numbers == number].sum())
            with torch.enable_grad():
                made.append(self.critic.learn(mine.take(rows.of_minibatch(number)), count))
        self.metrics |= {
            name: sum(metrics[name] for metrics in made) / len(made) for name in made[0]
        }
        self.metrics |= self.critic.explained_variance(mine)

    def _ratios(self, own: TokenBatch) -> Tensor:
        """(B, V) importance weights of the engine's samples."""
        assert own.logprobs is not None and own.policy_logprobs is not None
        trainer, engine, mask = own.policy_logprobs, own.logprobs, own.trained  # (B, V)
        self.metrics |= ratio_metrics(trainer, engine, mask)
        self.metrics |= self._correction.metrics(trainer, engine, mask)
        return self._correction.ratios(trainer, engine, mask)

    def _minibatch_of_episodes(self, every: TokenBatch, episodes: int) -> Tensor:
        """(B,) mini-batch of each episode of all processes; each process has `episodes`."""
        order = range(len(every.trainable))
        return torch.tensor(
            [minibatch_of(i % episodes, episodes, self._minibatches) for i in order]
        )
