"""Turn-level algorithms without a critic: discounted returns per turn, and GiGPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentgym_train.algorithms.base import (
    Algorithm,
    TokenBatch,
    against_group,
    discounted_sums,
    episodes_against_group,
    group_of_rows,
    on_tokens,
    turns_of,
    whiten,
)
from agentgym_train.config.values import check_numbers


@dataclass(frozen=True, slots=True)
class GiGPO(Algorithm):
    """Group-in-Group Policy Optimization (arXiv:2505.10978): A = A_episode + omega A_step.

    A_episode = (R_i - mean(R)) / F over the group's episodes. A_step = (G_k - mean(G)) / F over all
    turns of the group with the same preceding observation; G_k = r_k + gamma G_{k+1} is the turn's
    discounted return. An observation that occurs once has no A_step. F is the standard deviation
    (n - 1) if `scale`, else 1, which is the authors' setting.
    """

    omega: float = 1.0
    """Weight of A_step."""
    gamma: float = 0.95
    """Discount per turn."""
    scale: bool = False
    """Divide by the standard deviations."""

    def __post_init__(self) -> None:
        check_numbers(self)

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

    gamma: float = 0.95
    """Discount per turn."""
    baseline: Literal["group", "batch"] = "group"
    """The baseline of a turn's return."""

    def __post_init__(self) -> None:
        check_numbers(self)

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
