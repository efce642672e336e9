"""Algorithms with a critic: PPO and turn-level GAE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentgym_train.algorithms.base import (
    Algorithm,
    TokenBatch,
    Turns,
    against_group,
    discounted_sums,
    episodes_against_group,
    given,
    group_of_rows,
    on_tokens,
    pack,
    token_rewards,
    turns_of,
    unpack,
    valid,
    whiten,
)
from agentgym_train.config.checks import AboveZero, Count, NonNegative, Share, check_fields


@dataclass(frozen=True, slots=True)
class CriticTargets:
    """The critic's regression targets of a batch."""

    returns: Tensor
    """(B, T) float32 returns, 0.0 off the mask."""
    mask: Tensor
    """(B, T) bool: the positions whose value is learned."""


@dataclass(frozen=True, slots=True)
class ActorCritic(Algorithm):
    """An algorithm with a critic; its batches contain `TokenBatch.values`."""

    needs_critic: ClassVar[bool] = True

    gamma: Share = 1.0
    """Discount per step, which is a sampled token or a turn."""
    lam: Share = 1.0
    """Lambda of GAE: 1 uses rewards only, 0 the one-step temporal difference."""
    value_clip: AboveZero = 0.2
    """Clip range of the value update."""
    critic_learning_rate: AboveZero = 1e-5
    critic_warmup: Count = 0
    """Number of initial optimizer steps that update the critic only. A critic that is initialized
    to 0 needs none: the advantage is then the whitened return."""
    bootstrap_truncated: bool = False
    """Bootstrap from the last value if the horizon or the token budget truncated the episode. False
    treats truncation as termination: the horizon is part of the task."""

    def __post_init__(self) -> None:
        check_fields(self)

    def critic_targets(self, batch: TokenBatch) -> CriticTargets:
        """The critic's targets: advantage before whitening plus value."""
        raise NotImplementedError

    def gae(self, rewards: Tensor, values: Tensor, valid: Tensor, truncated: Tensor) -> Tensor:
        """(B, N) Generalized Advantage Estimation (arXiv:1506.02438) over packed steps.

        delta_t = r_t + gamma V_next - V_t and A_t = delta_t + gamma lambda A_next; after the last
        step V_next is 0, or V of that step for truncated episodes if `bootstrap_truncated`.
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

    All inputs are (B', T) for any rows B' of the step. `count` is the number of target values of
    the whole step, so that the gradients of the micro-batches add up to the step's gradient for any
    split. If gradients are averaged over processes, divide `count` by their number.
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
    next sampled token: observation tokens are skipped and have no value. r_t is the turn's reward,
    at its last sampled token. The advantages are whitened over the step's sampled tokens; the
    critic's targets A_t + V_t are not.
    """

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        advantages, _ = self._packed(batch)
        whitened = whiten(advantages, valid(batch.trained))  # (B, N)
        return unpack(whitened, batch.trained).to(torch.float32)

    def critic_targets(self, batch: TokenBatch) -> CriticTargets:
        """Targets at every sampled token."""
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
    """GAE over turns (Turn-PPO, arXiv:2512.17008), with the paper's best discounts.

    delta_k = r_k + gamma V_{k+1} - V_k and A_k = delta_k + gamma lambda A_{k+1}. V_k is the
    critic's value before the first sampled token of turn k. A_k is whitened over the step's turns,
    each counted once, and applies to every sampled token of the turn. The critic learns A_k + V_k
    at those first tokens only. Deviation: the policy's ratio is clipped per token, not per turn.
    """

    gamma: Share = 0.99
    """Discount per turn."""
    lam: Share = 0.9

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        turns = turns_of(batch)
        advantages, _ = self._of(turns, batch)
        return turns.on_tokens(whiten(advantages, turns.valid), batch)

    def critic_targets(self, batch: TokenBatch) -> CriticTargets:
        """Targets at the first sampled token of each turn."""
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


@dataclass(frozen=True, slots=True)
class GiGPO(Algorithm):
    """Group-in-Group Policy Optimization (arXiv:2505.10978): A = A_episode + omega A_step.

    A_episode = (R_i - mean(R)) / F over the group's episodes. A_step = (G_k - mean(G)) / F over all
    turns of the group with the same preceding observation; G_k = r_k + gamma G_{k+1} is the turn's
    discounted return. An observation that occurs once has no A_step. F is the standard deviation
    (n - 1) if `scale`, else 1, which is the authors' setting.
    """

    omega: NonNegative = 1.0
    """Weight of A_step."""
    gamma: Share = 0.95
    """Discount per turn."""
    scale: bool = False
    """Divide by the standard deviations."""

    def __post_init__(self) -> None:
        check_fields(self)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        episodes = episodes_against_group(batch, scale=self.scale)  # (B,)
        turns = turns_of(batch)
        returns = discounted_sums(turns.rewards, self.gamma)  # (B, A)
        steps = torch.zeros_like(returns)  # (B, A)
        rows, numbers = turns.valid.nonzero(as_tuple=True)  # (M,)
        if len(rows):
            met = torch.stack([group_of_rows(batch)[rows], turns.states[rows, numbers]])  # (2, M)
            _, same = torch.unique(met, dim=1, return_inverse=True)  # (M,)
            values = returns[rows, numbers]  # (M,)
            steps[rows, numbers] = against_group(values, same, scale=self.scale)
        return on_tokens(episodes, batch) + self.omega * turns.on_tokens(steps, batch)


@dataclass(frozen=True, slots=True)
class TurnReturns(Algorithm):
    """REINFORCE over turns: G_k = r_k + gamma G_{k+1}, on each token of turn k.

    `baseline="group"` subtracts the mean of G_k over the group's episodes that reach turn k, like
    GRPO (arXiv:2402.03300) per turn; a turn that only one episode reaches has no advantage.
    `baseline="batch"` whitens G over all turns of the step, each counted once.
    """

    gamma: Share = 0.95
    """Discount per turn."""
    baseline: Literal["group", "batch"] = "group"
    """The baseline of a turn's return."""

    def __post_init__(self) -> None:
        check_fields(self)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        turns = turns_of(batch)
        returns = discounted_sums(turns.rewards, self.gamma)  # (B, A)
        if self.baseline == "batch":
            return turns.on_tokens(whiten(returns, turns.valid), batch)
        rows, numbers = turns.valid.nonzero(as_tuple=True)  # (M,)
        groups = group_of_rows(batch)[rows] * returns.shape[1] + numbers  # (M,)
        advantages = torch.zeros_like(returns)  # (B, A)
        advantages[rows, numbers] = against_group(returns[rows, numbers], groups, scale=False)
        return turns.on_tokens(advantages, batch)
