"""GRPO: an episode is judged by the others of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from agentgym_train.algorithms.base import TokenBatch


@dataclass(frozen=True, slots=True)
class GRPO:
    """Group Relative Policy Optimization (arXiv:2402.03300): (return - group mean) / group std.

    The same advantage on every sampled token of an episode. Mean and standard deviation are over
    the group's episodes that teach; with fewer than two of those the group has no advantage.
    `scale=False` leaves the division out (Dr. GRPO, arXiv:2503.20783).
    """

    scale: bool = True
    loss_type: ClassVar[str] = "dapo"

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        returns = batch.rewards.sum(1).view(-1, batch.group_size)  # (P, G)
        teaches = batch.teaches.view(-1, batch.group_size).to(returns.dtype)  # (P, G)
        count = teaches.sum(1, keepdim=True)  # (P, 1)
        mean = (returns * teaches).sum(1, keepdim=True) / count.clamp(min=1)  # (P, 1)
        centered = (returns - mean) * teaches * (count > 1)  # (P, G)
        if self.scale:
            variance = centered.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)  # (P, 1)
            centered = centered / (variance.sqrt() + 1e-4)  # (P, G)
        return centered.view(-1, 1) * batch.loss_mask  # (B, T)
