"""Algorithms with a critic: PPO and turn-level GAE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentgym_env.errors import ConfigError
from agentgym_train.algorithms.base import (
    Algorithm,
    TokenBatch,
    Turns,
    check_share,
    discounted_sums,
    given,
    pack,
    token_rewards,
    turns_of,
    unpack,
    valid,
    whiten,
)


@dataclass(frozen=True, slots=True)
class CriticTargets:
    """What the critic learns from a batch."""

    returns: Tensor
    """(B, T) float32, 0.0 off the mask."""
    mask: Tensor
    """(B, T) bool: the places whose value is learned."""


@dataclass(frozen=True, slots=True)
class ActorCritic(Algorithm):
    """An algorithm that measures the policy by a critic; `TokenBatch.values` is given."""

    needs_critic: ClassVar[bool] = True

    gamma: float = 1.0
    """Discount a step: a sampled token, or a turn."""
    lam: float = 1.0
    """Lambda of GAE: 1 trusts the rewards alone, 0 the critic's next value."""
    value_clip: float = 0.2
    """The critic's estimate moves at most so far from the sampling critic's."""
    critic_learning_rate: float = 1e-5
    critic_warmup: int = 0
    """Optimizer steps at the start in which the critic alone learns. With a critic that starts at
    0 none is needed: the advantage then is the whitened return."""
    bootstrap_truncated: bool = False
    """Take the last value for what would have followed where horizon or token budget cut the
    episode off. False counts the cut as an end: the horizon is part of the task."""

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)
        check_share("lam", self.lam)
        if self.value_clip <= 0:
            raise ConfigError(f"value_clip is above 0, got {self.value_clip}")
        if not self.critic_learning_rate > 0:
            raise ConfigError(f"critic_learning_rate is above 0, got {self.critic_learning_rate}")
        if self.critic_warmup < 0:
            raise ConfigError(f"critic_warmup is at least 0 steps, got {self.critic_warmup}")

    def critic_targets(self, batch: TokenBatch) -> CriticTargets:
        """The returns the critic learns: advantage before whitening plus value."""
        raise NotImplementedError

    def gae(self, rewards: Tensor, values: Tensor, valid: Tensor, truncated: Tensor) -> Tensor:
        """(B, N) Generalized Advantage Estimation (arXiv:1506.02438) over packed steps.

        delta_t = r_t + gamma V_next - V_t and A_t = delta_t + gamma lambda A_next; after the last
        step V_next is 0, or V of that step where `truncated` if `bootstrap_truncated`.
        """
        following = pad(values[:, 1:], (0, 1)) * pad(valid[:, 1:], (0, 1))  # (B, N)
        if self.bootstrap_truncated:
            last = (valid.sum(1, keepdim=True) - 1).clamp(min=0)  # (B, 1)
            after = values.gather(1, last) * truncated.unsqueeze(1)  # (B, 1)
            following = following.scatter(1, last, after)  # (B, N)
        deltas = (rewards + self.gamma * following - values) * valid  # (B, N)
        return discounted_sums(deltas, self.gamma * self.lam)


def value_loss(
    values: Tensor,
    old_values: Tensor,
    targets: CriticTargets,
    *,
    clip: float,
    count: Tensor | float,
) -> Tensor:
    """PPO's clipped value loss, 1/2 sum max((V - R)^2, (V_clipped - R)^2) / count.

    Everything is (B', T) for any rows B' of the step. `count` is the number of learned places of
    the whole step, `mask.sum()` before any cut, so the gradients of the passes add up to the same
    for every cut; where processes average their gradients, divide it by their number.
    """
    mask = targets.mask
    new, old, returns = values[mask], old_values[mask], targets.returns[mask]  # (M,)
    clipped = old + (new - old).clamp(-clip, clip)  # (M,)
    worst = torch.maximum((new - returns).square(), (clipped - returns).square())  # (M,)
    return 0.5 * worst.sum() / count


@dataclass(frozen=True, slots=True)
class PPO(ActorCritic):
    """Proximal Policy Optimization (arXiv:1707.06347) over the sampled tokens of an episode.

    delta_t = r_t + gamma V_next - V_t and A_t = delta_t + gamma lambda A_next, where "next" is the
    next sampled token: observations between two turns are passed over and no value is read in
    them. r_t is a turn's reward, at its last sampled token. The advantages are whitened over the
    step's sampled tokens; the critic's returns A_t + V_t are not.
    """

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        advantages, _ = self._packed(batch)
        whitened = whiten(advantages, valid(batch.trained))  # (B, N)
        return unpack(whitened, batch.trained).to(torch.float32)

    def critic_targets(self, batch: TokenBatch) -> CriticTargets:
        """Returns at every sampled token."""
        advantages, values = self._packed(batch)
        returns = unpack(advantages + values, batch.trained)  # (B, T)
        return CriticTargets(returns.to(torch.float32), batch.trained)

    def _packed(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """(B, N) float64 advantages and values of the sampled tokens."""
        mask = batch.trained
        values = pack(given(batch.values, "values", "PPO"), mask)  # (B, N)
        return self.gae(token_rewards(batch), values, valid(mask), batch.truncated), values


@dataclass(frozen=True, slots=True)
class TurnGAE(ActorCritic):
    """GAE over turns (Turn-PPO, arXiv:2512.17008), discounts as that paper found best.

    delta_k = r_k + gamma V_{k+1} - V_k and A_k = delta_k + gamma lambda A_{k+1}, with V_k the
    critic's value before the first sampled token of turn k. A_k is whitened over the step's turns,
    each counted once, and stands on every token sampled in the turn. The critic learns A_k + V_k
    at those first tokens alone. Deviation: the policy's ratio is clipped a token, not a turn.
    """

    gamma: float = 0.99
    """Discount a turn."""
    lam: float = 0.9

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        turns = turns_of(batch)
        advantages, _ = self._of(turns, batch)
        return turns.on_tokens(whiten(advantages, turns.valid), batch)

    def critic_targets(self, batch: TokenBatch) -> CriticTargets:
        """Returns at the first sampled token of each turn."""
        turns = turns_of(batch)
        advantages, values = self._of(turns, batch)
        rows, _ = turns.valid.nonzero(as_tuple=True)
        columns = turns.starts[turns.valid]
        mask = torch.zeros_like(batch.trained)  # (B, T)
        mask[rows, columns] = True
        returns = torch.zeros_like(batch.loss_mask, dtype=torch.float32)  # (B, T)
        returns[rows, columns] = (advantages + values)[turns.valid].to(torch.float32)
        return CriticTargets(returns, mask)

    def _of(self, turns: Turns, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """(B, A) float64 advantages and values of the turns."""
        values = given(batch.values, "values", "turn_gae").gather(1, turns.starts)  # (B, A)
        values = values.masked_fill(~turns.valid, 0.0)  # (B, A)
        return self.gae(turns.rewards, values, turns.valid, batch.truncated), values
