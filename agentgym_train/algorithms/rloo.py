"""RLOO: the baseline of an episode is the mean return of the others of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentgym_train.algorithms.base import Algorithm, LossSettings, TokenBatch
from agentgym_train.algorithms.groups import centered, group_of_rows, on_tokens


@dataclass(frozen=True, slots=True)
class RLOO(Algorithm):
    """REINFORCE leave-one-out (arXiv:2402.14740): A_i = R_i - mean of R_j, j != i.

    Over the n episodes of the group that teach that is n/(n-1) (R_i - mean(R)); with n = 1 there
    is no advantage.

    `ratio="token"` goes into the clipped token mean. `ratio="sequence"` takes an episode as one
    action, as the paper does: the loss is the mean over episodes of n_i s_i A_i with
    s_i = (pi/pi_old)^(1/n_i), n_i its sampled tokens, whose gradient on the sampling policy is the
    paper's, A_i times that of the episode's log-probability. Deviation: off that policy s_i is the
    ratio's mean per token (LUSPO, arXiv:2602.05261), clipped as in GSPO; the plain product over
    thousands of tokens would always be clipped.
    """

    ratio: Literal["token", "sequence"] = "token"
    """What is clipped against the old policy."""

    @property
    def loss(self) -> LossSettings:
        """The loss of either ratio."""
        if self.ratio == "token":
            return LossSettings()
        return LossSettings(
            loss_type="luspo",
            importance_sampling_level="sequence",
            epsilon=3e-4,
            epsilon_high=4e-4,
        )

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        returns = batch.rewards.to(torch.float64).sum(1)  # (B,)
        teaching = batch.teaches
        differences, sizes = centered(returns[teaching], group_of_rows(batch)[teaching])
        advantages = torch.zeros_like(returns)  # (B,)
        advantages[teaching] = differences * sizes / (sizes - 1).clamp(min=1)
        return on_tokens(advantages, batch)
