"""What an algorithm sees and what it gives: a batch of episodes, and an advantage a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """B episodes padded to T completion tokens; rows i*G .. i*G+G-1 share task and seed."""

    loss_mask: Tensor
    """(B, T) 1.0 where the policy sampled the token."""
    rewards: Tensor
    """(B, K) reward of turn k; 0.0 past the end."""
    turn_ends: Tensor
    """(B, K) index just past the last sampled token of turn k; 0 past the end."""
    teaches: Tensor
    """(B,) False for a lost episode: it is in no baseline and has no advantage."""
    group_size: int
    """G."""


class Algorithm(Protocol):
    """An advantage estimator: a frozen dataclass whose fields are its hyper-parameters."""

    loss_type: ClassVar[str]
    """TRL's name of the loss the advantages go into."""

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T), zero off the mask and for episodes that do not teach."""
        ...
