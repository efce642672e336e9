"""REINFORCE++ as AgentGym-RL computes it: the reward falls on a token that is not trained on.

Its rollout writes the score at the last attended token of an episode. After every step that is the
environment's reply, which the loss mask excludes, and the estimator multiplies rewards by the mask
before it adds them up. So every return is 0, and what remains of the loss is the entropy bonus and
the KL term. GRPO adds the rewards up without the mask and is not affected.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_train.algorithms import Algorithm, TokenBatch
from agentgym_train.algorithms.base import discounted_sums, whiten


@dataclass(frozen=True, slots=True)
class MaskedRewardReinforcePP(Algorithm):
    """G_t = m_t r_t + G_{t+1} over all tokens, whitened over the sampled ones (mask m)."""

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        trained = batch.trained  # (B, T)
        # One more column: the reply to the last turn follows an episode's last sampled token.
        mask = torch.nn.functional.pad(trained.double(), (0, 1))  # (B, T + 1)
        rewards = torch.zeros_like(mask)  # (B, T + 1)
        reply = batch.turn_ends.max(1, keepdim=True).values  # (B, 1)
        rewards.scatter_(1, reply, batch.rewards.double().sum(1, keepdim=True))
        returns = discounted_sums(rewards * mask, 1.0)[:, :-1]  # (B, T)
        return whiten(returns, trained).to(torch.float32)
