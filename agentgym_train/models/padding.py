"""Which rows of unequal length go through a model together."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final

PASS_COST: Final = 256
"""Overhead of a pass, in tokens; measured on a CPU."""
_ON_GPU = 8.6e10
"""The same, times parameters per layer: a layer's kernels take a time to start, whatever they
compute. Measured on an H100 with 135M parameters: 80 ms for 30 layers, and 4.1 us per token."""


def pass_cost_of(model: Any) -> int:
    """Overhead of a pass through a model on its device, in tokens."""
    if next(iter(model.parameters())).device.type == "cpu":
        return PASS_COST
    # DeepSpeed's stage 3 leaves empty tensors.
    count = sum(getattr(weight, "ds_numel", weight.numel()) for weight in model.parameters())
    layers: int = getattr(model.config.get_text_config(), "num_hidden_layers", 1)
    return int(_ON_GPU * layers / count)


def like_lengths(lengths: Sequence[int], pass_cost: int, budget: float = inf) -> list[list[int]]:
    """The cheapest split of rows, sorted by length, into padded passes of at most `budget` tokens.

    cost[j] = min over i <= j of cost[i] + (j - i) * longest of rows i..j-1 + pass_cost.
    """
    rows = sorted(range(len(lengths)), key=lengths.__getitem__)
    cost = [0.0] + [inf] * len(rows)
    start = [0] * (len(rows) + 1)
    for end in range(1, len(rows) + 1):
        longest = lengths[rows[end - 1]]
        for begin in range(end - 1, -1, -1):
            tokens = (end - begin) * longest
            if tokens > budget and begin < end - 1:
                break
            if cost[begin] + tokens + pass_cost < cost[end]:
                cost[end] = cost[begin] + tokens + pass_cost
                start[end] = begin
    passes: list[list[int]] = []
    end = len(rows)
    while end:
        passes.append(rows[start[end] : end])
        end = start[end]
    return passes
