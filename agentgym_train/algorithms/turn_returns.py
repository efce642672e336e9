"""Discounted returns of turns against those of the same turn in the group, or of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentgym_train.algorithms.base import Algorithm, TokenBatch, check_share
from agentgym_train.algorithms.groups import against_group, group_of_rows
from agentgym_train.algorithms.ragged import discounted_sums, whiten
from agentgym_train.algorithms.turns import turns_of


@dataclass(frozen=True, slots=True)
class TurnReturns(Algorithm):
    """REINFORCE with the turn as its step: G_k = r_k + gamma G_{k+1}, on each token of turn k.

    With `baseline="group"` the mean of G_k over the group's episodes that reach turn k is taken
    off (GRPO's idea, arXiv:2402.03300, turn by turn); a turn only one episode reaches has no
    advantage. With `"batch"` G is whitened over all turns of the step, each counted once.
    """

    gamma: float = 0.95
    """Discount a turn."""
    baseline: Literal["group", "batch"] = "group"
    """What a turn's return is measured by."""

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)

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
