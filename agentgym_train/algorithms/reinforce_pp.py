"""REINFORCE++: no critic and no groups, returns of tokens whitened over the whole step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_env.errors import BadRequest
from agentgym_train.algorithms.base import Algorithm, TokenBatch, check_share, given
from agentgym_train.algorithms.groups import episodes_against_group, group_of_rows
from agentgym_train.algorithms.ragged import discounted_sums, pack, unpack, whiten
from agentgym_train.algorithms.ragged import valid as valid_places
from agentgym_train.algorithms.turns import token_rewards


@dataclass(frozen=True, slots=True)
class ReinforcePP(Algorithm):
    """REINFORCE++ (arXiv:2501.03262): G_t = r_t - kl (log pi - log pi_ref)_t + gamma G_next.

    "Next" is the next sampled token, so a return passes over the observations in between and
    nothing is lost in them; r_t is a turn's reward, at its last sampled token. The advantage is
    G whitened over all sampled tokens of the step: (G - mean(G)) / std(G).
    """

    gamma: float = 1.0
    """Discount a sampled token."""
    kl: float = 0.0
    """Weight of the divergence from the reference in the reward (k1); above 0 needs a reference."""

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)
        if self.kl < 0:
            raise BadRequest(f"kl is at least 0, got {self.kl}")

    @property
    def needs_reference(self) -> bool:
        """Whether the reward has a divergence in it."""
        return self.kl > 0

    def returns(self, batch: TokenBatch) -> Tensor:
        """(B, N) float64: G of the sampled tokens, in order."""
        rewards = token_rewards(batch)  # (B, N)
        if self.needs_reference:
            policy = given(batch.logprobs, "logprobs", "REINFORCE++ with kl")
            reference = given(batch.ref_logprobs, "ref_logprobs", "REINFORCE++ with kl")
            rewards = rewards - self.kl * pack(policy - reference, batch.trained)  # (B, N)
        return discounted_sums(rewards, self.gamma)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        whitened = whiten(self.returns(batch), valid_places(batch.trained))  # (B, N)
        return unpack(whitened, batch.trained).to(torch.float32)


@dataclass(frozen=True, slots=True)
class ReinforcePPBaseline(Algorithm):
    """REINFORCE++ with baseline (arXiv:2501.03262): R_i - mean(R) of the group, then whitened.

    Whitened over all sampled tokens of the step, so no group's own deviation enters. An episode
    without another of its group that teaches has no advantage and no part in the whitening. The
    paper's divergence stands in the loss: `kl` of the run.
    """

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        differences = episodes_against_group(batch, scale=False)  # (B,)
        groups = group_of_rows(batch)  # (B,)
        peers = torch.zeros_like(groups).index_add(0, groups, batch.teaches.long())[groups]  # (B,)
        mask = batch.trained & (peers > 1).unsqueeze(1)  # (B, T)
        return whiten(differences.unsqueeze(1).expand(mask.shape), mask).to(torch.float32)
