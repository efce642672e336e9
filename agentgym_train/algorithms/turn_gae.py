"""PPO with the turn as its step: a critic values the state before each turn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_train.algorithms.actor_critic import ActorCritic, CriticTargets
from agentgym_train.algorithms.base import TokenBatch, given
from agentgym_train.algorithms.ragged import whiten
from agentgym_train.algorithms.turns import Turns, turns_of


@dataclass(frozen=True, slots=True)
class TurnGAE(ActorCritic):
    """GAE over turns (Turn-PPO, arXiv:2512.17008), discounts as that paper found best.

    delta_k = r_k + gamma V_{k+1} - V_k and A_k = delta_k + gamma lambda A_{k+1}, with V_k the
    critic's value before the first sampled token of turn k. A_k is whitened over the step's turns,
    each counted once, and stands on every token sampled in the turn. The critic learns A_k + V_k
    at those first tokens alone. Deviation: the policy's ratio is clipped a token, not a turn.
    """

    gamma: float = 0.99
    """Discount a turn."""
    lam: float = 0.9

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        turns = turns_of(batch)
        advantages, _ = self._of(turns, batch)
        return turns.on_tokens(whiten(advantages, turns.valid), batch)

    def critic_targets(self, batch: TokenBatch) -> CriticTargets:
        """Returns at the first sampled token of each turn."""
        turns = turns_of(batch)
        advantages, values = self._of(turns, batch)
        rows, _ = turns.valid.nonzero(as_tuple=True)
        columns = turns.starts[turns.valid]
        mask = torch.zeros_like(batch.trained)  # (B, T)
        mask[rows, columns] = True
        returns = torch.zeros_like(batch.loss_mask, dtype=torch.float32)  # (B, T)
        returns[rows, columns] = (advantages + values)[turns.valid].to(torch.float32)
        return CriticTargets(returns, mask)

    def _of(self, turns: Turns, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """(B, A) float64 advantages and values of the turns."""
        values = given(batch.values, "values", "turn_gae").gather(1, turns.starts)  # (B, A)
        values = values.masked_fill(~turns.valid, 0.0)  # (B, A)
        return self.gae(turns.rewards, values, turns.valid, batch.truncated), values
