"""Cuts a batch of ragged episodes into passes, and lays the tokens of a pass out without waste.

Knows token counts and attention kinds; nothing about losses or trainers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Passes = list[list[int]]
"""Row numbers of each forward and backward pass; every row is in exactly one."""

_PASS_COST = 256
"""What one more pass costs beside its tokens, in tokens; measured on a CPU."""
_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The input of one model call for R rows of W columns, and what is scored of it."""

    input_ids: Tensor
    """(R, L) each row's tokens from column 0 on, or (1, N) all rows one after the other."""
    position_ids: Tensor | None
    """(1, N) restarting with every row; None where columns are positions."""
    predictors: Tensor
    """(S,) index into the flattened `input_ids` of the token before each scored one."""
    labels: Tensor
    """(S,) the scored tokens."""
    scored: Tensor
    """(R, W) bool: where the S scores belong, in order."""


def shares_rows(config: Any, stateful: bool) -> bool:
    """Whether rows of this model can hold several episodes: they can where the kernel is varlen.

    Flash attention reads the bounds of episodes off the position ids. Other kernels would pay for
    a dense mask over the whole row, and a recurrent layer would carry one episode into the next.
    """
    layers = set(getattr(config, "layer_types", None) or ())
    varlen = "flash" in (config._attn_implementation or "")
    return varlen and not stateful and layers <= _ATTENTION_LAYERS


def plan(lengths: Sequence[int], budget: int, *, shared_rows: bool) -> Passes:
    """Passes of at most `budget` tokens, padding included; a longer row is a pass of its own.

    The largest comes first, so that a run which does not fit in memory fails at its first pass.
    """
    passes = _bins(lengths, budget) if shared_rows else _like_lengths(lengths, budget)
    return sorted(passes, key=lambda rows: -sum(lengths[row] for row in rows))


def split(passes: Passes, lengths: Sequence[int], count: int) -> Passes:
    """The same rows in `count` passes, by halving the largest that can be halved.

    Processes of a distributed model must call it equally often.
    """
    passes = list(passes)
    while len(passes) < count:
        divisible = [number for number, rows in enumerate(passes) if len(rows) > 1]
        if not divisible:
            raise ValueError(
                f"{len(lengths)} rows cannot make {count} passes; give every process equally "
                "many rows"
            )
        largest = max(divisible, key=lambda number: sum(lengths[r] for r in passes[number]))
        rows = passes[largest]
        passes[largest : largest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return passes


def lay_out(
    input_ids: Tensor, attention_mask: Tensor, trained: Tensor, *, shared_rows: bool
) -> Layout:
    """The Layout of R rows given padded, (R, W) each: ids, 1 at tokens, true at trained tokens.

    Padding on the left is dropped, so that positions count from the first token by construction;
    padding on the right needs no mask, since nothing looks ahead. A row's first token has no
    predictor and is not scored.
    """
    real = attention_mask.bool()  # (R, W)
    position = real.cumsum(1) - 1  # (R, W)
    lengths = real.sum(1)  # (R,)
    if shared_rows:
        first = lengths.cumsum(0) - lengths  # (R,)
        ids = input_ids[real][None]  # (1, N)
    else:
        width = int(lengths.max())
        first = torch.arange(len(lengths), device=lengths.device) * width  # (R,)
        ids = input_ids.new_zeros(len(lengths), width)  # (R, L)
    flat = first[:, None] + position  # (R, W)
    if not shared_rows:
        ids.view(-1)[flat[real]] = input_ids[real]
    scored = trained.bool() & real & (position > 0)  # (R, W)
    return Layout(
        input_ids=ids,
        position_ids=position[real][None] if shared_rows else None,
        predictors=flat[scored] - 1,  # (S,)
        labels=input_ids[scored],  # (S,)
        scored=scored,
    )


def _bins(lengths: Sequence[int], budget: int) -> Passes:
    """First fit, longest rows first."""
    passes: Passes = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda r: -lengths[r]):
        fits = next((n for n, left in enumerate(room) if left >= lengths[row]), None)
        if fits is None:
            passes.append([row])
            room.append(budget - lengths[row])
        else:
            passes[fits].append(row)
            room[fits] -= lengths[row]
    return passes


def _like_lengths(lengths: Sequence[int], budget: int) -> Passes:
    """The cheapest cut of the rows, sorted by length, into padded passes.

    cost[j] = min over i <= j of cost[i] + (j - i) * longest of rows i..j-1 + _PASS_COST.
    """
    rows = sorted(range(len(lengths)), key=lengths.__getitem__)
    cost = [0.0] + [float("inf")] * len(rows)
    start = [0] * (len(rows) + 1)
    for end in range(1, len(rows) + 1):
        longest = lengths[rows[end - 1]]
        for begin in range(end - 1, -1, -1):
            tokens = (end - begin) * longest
            if tokens > budget and begin < end - 1:
                break
            if cost[begin] + tokens + _PASS_COST < cost[end]:
                cost[end] = cost[begin] + tokens + _PASS_COST
                start[end] = begin
    passes: Passes = []
    end = len(rows)
    while end:
        passes.append(rows[start[end] : end])
        end = start[end]
    return passes
