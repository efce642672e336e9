"""PPO: a critic values every sampled token, and GAE passes over what the policy did not write."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_train.algorithms.actor_critic import ActorCritic, CriticTargets
from agentgym_train.algorithms.base import TokenBatch, given
from agentgym_train.algorithms.ragged import pack, unpack, valid, whiten
from agentgym_train.algorithms.turns import token_rewards


@dataclass(frozen=True, slots=True)
class PPO(ActorCritic):
    """Proximal Policy Optimization (arXiv:1707.06347) over the sampled tokens of an episode.

    delta_t = r_t + gamma V_next - V_t and A_t = delta_t + gamma lambda A_next, where "next" is the
    next sampled token: observations between two turns are passed over and no value is read in
    them. r_t is a turn's reward, at its last sampled token. The advantages are whitened over the
    step's sampled tokens; the critic's returns A_t + V_t are not.
    """

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        advantages, _ = self._packed(batch)
        whitened = whiten(advantages, valid(batch.trained))  # (B, N)
        return unpack(whitened, batch.trained).to(torch.float32)

    def critic_targets(self, batch: TokenBatch) -> CriticTargets:
        """Returns at every sampled token."""
        advantages, values = self._packed(batch)
        returns = unpack(advantages + values, batch.trained)  # (B, T)
        return CriticTargets(returns.to(torch.float32), batch.trained)

    def _packed(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """(B, N) float64 advantages and values of the sampled tokens."""
        mask = batch.trained
        values = pack(given(batch.values, "values", "PPO"), mask)  # (B, N)
        return self.gae(token_rewards(batch), values, valid(mask), batch.truncated), values
