"""Turns as steps of credit: which token is of which turn, and where a turn's reward lands.

A turn in which nothing was sampled is no step: its reward joins the turn before it, or the next
if there is none. So "next" always means the next turn, or token, that the policy sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentgym_train.algorithms.base import TokenBatch
from agentgym_train.algorithms.ragged import pack, ranks, unpack, valid


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns with a sampled token, in order, of the episodes that teach: A at most in one."""

    valid: Tensor
    """(B, A) bool, False past an episode's last."""
    rewards: Tensor
    """(B, A) float64."""
    starts: Tensor
    """(B, A) int64 column of the turn's first sampled token; 0 past the end."""
    states: Tensor
    """(B, A) int64 id of the observation the turn answers; -1 past the end."""
    of_token: Tensor
    """(B, T) int64 which of them a sampled token is of; 0 off the mask."""

    def on_tokens(self, x: Tensor, batch: TokenBatch) -> Tensor:
        """(B, A) to (B, T) float32: each turn's number on every token sampled in it."""
        return (x.gather(1, self.of_token) * batch.trained).to(torch.float32)


def token_rewards(batch: TokenBatch) -> Tensor:
    """(B, N) float64: each turn's reward at its last sampled token, sampled tokens alone."""
    packed = valid(batch.trained)  # (B, N)
    rewards = torch.zeros(packed.shape, dtype=torch.float64, device=packed.device)  # (B, N)
    rewards.scatter_add_(1, _landing(batch), batch.rewards.to(torch.float64))
    return rewards * packed


def turns_of(batch: TokenBatch) -> Turns:
    """The batch's turns as steps."""
    mask = batch.trained  # (B, T)
    ends = _sampled_by_end(batch)  # (B, K)
    begins = pad(ends[:, :-1], (1, 0))  # (B, K) tokens sampled before the turn
    acted = ends > begins  # (B, K)
    filled = valid(acted)  # (B, A)

    first = torch.zeros_like(valid(mask))  # (B, N) True at a turn's first token
    rows, _ = acted.nonzero(as_tuple=True)
    first[rows, begins[acted]] = True
    turn = (first.long().cumsum(1) - 1).clamp(min=0)  # (B, N)

    rewards = torch.zeros(filled.shape, dtype=torch.float64, device=mask.device)  # (B, A)
    rewards.scatter_add_(1, turn.gather(1, _landing(batch)), batch.rewards.to(torch.float64))
    columns = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)  # (B, T)
    firsts = pack(columns, mask).gather(1, begins.clamp(max=first.shape[1] - 1))  # (B, K)
    return Turns(
        valid=filled,
        rewards=rewards * filled,
        starts=pack(firsts, acted),
        states=pack(batch.states, acted).masked_fill(~filled, -1),
        of_token=unpack(turn, mask),
    )


def _sampled_by_end(batch: TokenBatch) -> Tensor:
    """(B, K) int64: tokens sampled up to the end of each turn; 0 past the last turn."""
    before = ranks(pad(batch.trained, (0, 1)))  # (B, T + 1)
    return before.gather(1, batch.turn_ends)


def _landing(batch: TokenBatch) -> Tensor:
    """(B, K) int64: the sampled token that takes a turn's reward.

    The last one sampled by the turn's end, which is of an earlier turn if this one has none; the
    episode's first if nothing had been sampled yet.
    """
    return (_sampled_by_end(batch) - 1).clamp(min=0)
