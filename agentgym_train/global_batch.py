"""One batch of all processes' episodes, and this process's rows of what was made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentgym_train.algorithms.base import TokenBatch

_FILL = {"states": -1}
"""What stands past a row's end, where it is not 0."""


def joined(batches: Sequence[TokenBatch]) -> TokenBatch:
    """The batches of all processes, by rank, as one; each has its own B, T and K."""
    if len(batches) == 1:
        return batches[0]
    values: dict[str, Any] = {
        field.name: _stacked([getattr(batch, field.name) for batch in batches], field.name)
        for field in fields(TokenBatch)
        if field.name != "group_size"
    }
    return TokenBatch(group_size=batches[0].group_size, **values)


def rows_of(tensor: Tensor, batches: Sequence[TokenBatch], rank: int) -> Tensor:
    """(B, T) rows of one process, T its own, of a (sum of B, widest T) tensor of all."""
    first = sum(len(batch.teaches) for batch in batches[:rank])
    own = batches[rank].loss_mask
    return tensor[first : first + own.shape[0], : own.shape[1]]


def _stacked(tensors: Sequence[Tensor | None], name: str) -> Tensor | None:
    given = [tensor for tensor in tensors if tensor is not None]
    if not given:
        return None
    if given[0].dim() == 1:
        return torch.cat(given)
    width = max(tensor.shape[1] for tensor in given)
    fill = _FILL.get(name, 0)
    return torch.cat([pad(t, (0, width - t.shape[1]), value=fill) for t in given])
