"""A value against the others of its group; a group of one has nothing to be compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym_train.algorithms.base import TokenBatch

_TINY = 1e-4
"""TRL's own, so that a group's advantages are TRL's to the last digit."""


def centered(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """(M,) each value minus its group's mean, 0 in a group of one; (M,) the group's size."""
    if not len(values):
        return values, values
    sums = values.new_zeros(int(groups.max()) + 1)
    sizes = sums.index_add(0, groups, torch.ones_like(values))[groups]  # (M,)
    means = sums.index_add(0, groups, values)[groups] / sizes  # (M,)
    return values - means, sizes


def against_group(values: Tensor, groups: Tensor, *, scale: bool) -> Tensor:
    """(M,) (value - group mean), over the group's standard deviation (with n - 1) if `scale`."""
    differences, sizes = centered(values, groups)
    if not scale or not len(values):
        return differences
    sums = values.new_zeros(int(groups.max()) + 1)
    squares = sums.index_add(0, groups, differences.square())[groups]  # (M,)
    return differences / ((squares / (sizes - 1).clamp(min=1)).sqrt() + _TINY)


def group_of_rows(batch: TokenBatch) -> Tensor:
    """(B,) int64: which group each episode is of."""
    rows = torch.arange(len(batch.rewards), device=batch.rewards.device)
    return rows // batch.group_size


def episodes_against_group(batch: TokenBatch, *, scale: bool) -> Tensor:
    """(B,) float64: each return against those of its group that teach; 0 for one that does not."""
    returns = batch.rewards.to(torch.float64).sum(1)  # (B,)
    teaching = batch.teaches
    advantages = torch.zeros_like(returns)  # (B,)
    advantages[teaching] = against_group(
        returns[teaching], group_of_rows(batch)[teaching], scale=scale
    )
    return advantages


def on_tokens(episodes: Tensor, batch: TokenBatch) -> Tensor:
    """(B,) to (B, T) float32: the same on every sampled token of an episode."""
    return (episodes.unsqueeze(1) * batch.trained).to(torch.float32)
