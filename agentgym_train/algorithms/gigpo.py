"""GiGPO: an episode against its group, and a turn against those that met the same state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_env.errors import BadRequest
from agentgym_train.algorithms.base import Algorithm, TokenBatch, check_share
from agentgym_train.algorithms.groups import (
    against_group,
    episodes_against_group,
    group_of_rows,
    on_tokens,
)
from agentgym_train.algorithms.ragged import discounted_sums
from agentgym_train.algorithms.turns import turns_of


@dataclass(frozen=True, slots=True)
class GiGPO(Algorithm):
    """Group-in-Group Policy Optimization (arXiv:2505.10978): A = A_episode + omega A_step.

    A_episode = (R_i - mean(R)) / F over the group's episodes. A_step = (G_k - mean(G)) / F over
    the turns of the group, of any episode and any number, that answer the same observation text;
    G_k = r_k + gamma G_{k+1} is the turn's discounted return. A state met once has no A_step. F is
    the standard deviation (with n - 1) if `scale`, else 1, which is the authors' own setting.
    """

    omega: float = 1.0
    """Weight of the step's advantage."""
    gamma: float = 0.95
    """Discount a turn."""
    scale: bool = False
    """Divide by the deviations."""

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)
        if self.omega < 0:
            raise BadRequest(f"omega is at least 0, got {self.omega}; 0 leaves states out")

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        episodes = episodes_against_group(batch, scale=self.scale)  # (B,)
        turns = turns_of(batch)
        returns = discounted_sums(turns.rewards, self.gamma)  # (B, A)
        steps = torch.zeros_like(returns)  # (B, A)
        rows, numbers = turns.valid.nonzero(as_tuple=True)  # (M,)
        if len(rows):
            met = torch.stack([group_of_rows(batch)[rows], turns.states[rows, numbers]])  # (2, M)
            _, same = torch.unique(met, dim=1, return_inverse=True)  # (M,)
            values = returns[rows, numbers]  # (M,)
            steps[rows, numbers] = against_group(values, same, scale=self.scale)
        return on_tokens(episodes, batch) + self.omega * turns.on_tokens(steps, batch)
