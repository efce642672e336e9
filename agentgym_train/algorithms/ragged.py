"""Rows of unequal length: packing, discounted sums, whitening. Knows nothing of episodes.

Sums are long (a step has 10^6 tokens), so callers pass float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-8


def ranks(mask: Tensor) -> Tensor:
    """(B, T) int64: how many entries of the row's mask stand before each place."""
    return mask.long().cumsum(1) - mask.long()


def valid(mask: Tensor) -> Tensor:
    """(B, N) bool: the places of a packed row that are filled; N is the fullest row's, or 1."""
    sizes = mask.sum(1, keepdim=True)  # (B, 1)
    width = max(1, int(sizes.max()) if len(mask) else 1)
    return torch.arange(width, device=mask.device).unsqueeze(0) < sizes  # (B, N)


def pack(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T) to (B, N): the masked entries of each row moved to its front, zeros after them."""
    places = valid(mask)  # (B, N)
    packed = x.new_zeros(places.shape)  # (B, N)
    packed[places] = x[mask]
    return packed


def unpack(x: Tensor, mask: Tensor) -> Tensor:
    """(B, N) to (B, T), `pack`'s inverse; zeros off the mask."""
    spread = x.new_zeros(mask.shape)  # (B, T)
    spread[mask] = x[valid(mask)]
    return spread


def discounted_sums(x: Tensor, discount: float) -> Tensor:
    """(B, N): y_t = x_t + discount * y_{t+1}.

    By doubling: after j rounds y_t holds the next 2^j terms, so log2(N) rounds do.
    """
    sums, reach = x, 1
    while reach < x.shape[1]:
        near = sums[:, :-reach] + discount**reach * sums[:, reach:]  # (B, N - reach)
        sums = torch.cat([near, sums[:, -reach:]], 1)  # (B, N)
        reach *= 2
    return sums


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(B, N): mean 0 and standard deviation 1 (with n - 1) over the mask, zero off it."""
    whitened = torch.zeros_like(x)  # (B, N)
    chosen = x[mask]  # (M,)
    if len(chosen):
        centered = chosen - chosen.mean()  # (M,)
        deviation = (centered.square().sum() / max(1, len(chosen) - 1)).sqrt()
        whitened[mask] = centered / (deviation + _TINY)
    return whitened
