"""Scores the tokens of rows of unequal length without paying for their padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

Scored = tuple[Tensor, Tensor | None, Tensor | None]
"""(logprobs (B, T), entropies (B, T) or None, auxiliary loss or None)"""

_SPREAD = 1.25
"""The longest row of a chunk is at most this many times its shortest."""


def score_by_length(
    score: Callable[[Tensor, Tensor, int], Scored],
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_width: int,
) -> Scored:
    """`score(input_ids, attention_mask, width)` over chunks of rows of like length.

    A row is a left-padded prompt and a right-padded completion of `completion_width` = T columns.
    Columns that are padding in a whole chunk are cut off before the forward; their scores are 0.
    """
    prompt_width = input_ids.shape[1] - completion_width
    chunks = _chunks(attention_mask.sum(1).tolist())
    logprobs, entropies = [], []
    for rows in chunks:
        chosen = torch.tensor(rows, device=input_ids.device)
        mask = attention_mask.index_select(0, chosen)  # (rows, columns)
        used = mask.any(0).nonzero()  # (used columns, 1)
        first, end = int(used[0]), max(int(used[-1]) + 1, prompt_width + 1)
        ids = input_ids.index_select(0, chosen)[:, first:end]
        found, spread, _ = score(ids, mask[:, first:end], end - prompt_width)
        missing = prompt_width + completion_width - end
        logprobs.append(pad(found, (0, missing)))  # (rows, T)
        if spread is not None:
            entropies.append(pad(spread, (0, missing)))  # (rows, T)
    order = torch.tensor([row for rows in chunks for row in rows], device=input_ids.device)
    back = order.argsort()
    return (
        torch.cat(logprobs).index_select(0, back),
        torch.cat(entropies).index_select(0, back) if entropies else None,
        None,
    )


def _chunks(lengths: list[int]) -> list[list[int]]:
    """Row numbers, shortest rows first, in chunks of like length."""
    chunks: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not chunks or lengths[row] > _SPREAD * lengths[chunks[-1][0]]:
            chunks.append([])
        chunks[-1].append(row)
    return chunks
