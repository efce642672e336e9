"""Chooses the next token of each row from its logits and its own draw."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

NEAR: Final = 2e-4
"""A choice is near another if a change of this size of the difference of two logits changes it. In
float32, other rows of a batch change them by about 1e-5."""
_OFFSETS: Final = 1 << 20
"""Places of the table of random bits where the noise of a draw may begin."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One token for each of B rows."""

    tokens: Tensor  # (B,)
    logprobs: Tensor  # (B,) of the tokens, after the temperature
    is_near: Tensor  # (B,) whether rounding may change it


def choose(logits: Tensor, temperatures: list[float], draws: list[int]) -> Choice:
    """By the Gumbel-max trick with each row's own draw, or the most likely at temperature 0.

    `logits` are (B, V); a draw has 63 random bits. Whatever the distribution, few choices are near:
    with probabilities p, on average NEAR times the sum of p (1 - p) of them at a temperature of 1,
    and more below, where changes of logits weigh more. By inverse CDF, all would be where each
    token is unlikely. Tokens with probabilities below 1e-9 are drawn somewhat too rarely.
    """
    device = logits.device
    divisor = torch.tensor([t or 1.0 for t in temperatures], device=device)  # (B,)
    logprobs = torch.log_softmax(logits.float() / divisor[:, None], dim=-1)  # (B, V)
    scores = logprobs  # (B, V)
    if any(temperatures):
        # -log(E) of an exponential variable E = -log(1 - u) is a Gumbel variable.
        noise = _uniform(draws, logits.shape[-1], device).neg_().log1p_().neg_().log_()  # (B, V)
        noise[torch.tensor([t == 0 for t in temperatures], device=device)] = 0
        scores = torch.sub(logprobs, noise, out=noise)
    best, tokens = scores.topk(2, dim=-1)  # (B, 2)
    chosen = logprobs.gather(1, tokens[:, :1]).squeeze(1)  # (B,)
    is_near = (best[:, 0] - best[:, 1]) * divisor.clamp(max=1) < NEAR  # (B,)
    return Choice(tokens[:, 0], chosen, is_near)


@lru_cache(maxsize=4)
def _random_bits(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two tables of `size` + _OFFSETS int32, the same on every device and in every process.

    A larger size adds to their ends, so tokens that pad a vocabulary change no other.
    """
    count = 4 * (size + _OFFSETS)
    tables = [bytearray(random.Random(seed).randbytes(count)) for seed in (0, 1)]
    first, second = (torch.frombuffer(table, dtype=torch.int32) for table in tables)
    return first.to(device), second.to(device)


def _uniform(draws: list[int], size: int, device: torch.device) -> Tensor:
    """(B, size) float32 in (0, 1), which depend on each row's draw alone.

    Two stretches of random bits, whose places are 20 bits of the draw each, are combined with each
    other and with its remaining 23 bits. A generator of its own for each row would cost more than
    all the rest of a choice.
    """
    mask = _OFFSETS - 1
    places = torch.tensor([[d & mask, d >> 20 & mask] for d in draws], device=device)  # (B, 2)
    high = torch.tensor([d >> 40 << 8 for d in draws], dtype=torch.int32, device=device)  # (B,)
    first, second = _random_bits(size, device)
    bits = first.unfold(0, size, 1)[places[:, 0]]  # (B, size)
    bits ^= second.unfold(0, size, 1)[places[:, 1]]
    bits ^= high[:, None]
    bits &= 0x7FFFFFFF
    # Large values would round to 1, whose noise excludes the token however likely it is.
    return bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
