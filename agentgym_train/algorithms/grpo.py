"""GRPO and its relatives, RLOO and REINFORCE++: episodes against a baseline without a critic.

They share the advantage A_i = (R_i - mean(R)) / std(R), R_i the sum of an episode's rewards, mean
and std (with n - 1) over the episodes of its group that teach, the same on every sampled token;
with fewer than two of those a group has none. They differ in the loss it goes into. What a loss
averages over the step's sampled tokens is independent of how the step is cut into passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentgym_env.errors import ConfigError
from agentgym_train.algorithms.base import (
    Algorithm,
    LossSettings,
    TokenBatch,
    centered,
    check_share,
    discounted_sums,
    episodes_against_group,
    given,
    group_of_rows,
    on_tokens,
    pack,
    token_rewards,
    unpack,
    whiten,
)
from agentgym_train.algorithms.base import valid as valid_places


def group_advantages(batch: TokenBatch, *, scale: bool = True) -> Tensor:
    """(B, T) the advantage above; `scale=False` leaves the division out."""
    return on_tokens(episodes_against_group(batch, scale=scale), batch)


@dataclass(frozen=True, slots=True)
class GRPO(Algorithm):
    """Group Relative Policy Optimization (arXiv:2402.03300), ratio clipped to 0.8..1.2.

    Deviation: the paper averages over each episode's tokens and then over episodes, which weighs
    a token of a long episode less. By default the mean is over all the step's tokens, as
    AgentGym-RL (verl) and TRL's trainer have it; `average="sequence"` is the paper's.
    """

    scale: bool = True
    """Divide by the group's standard deviation."""
    average: Literal["token", "sequence"] = "token"
    """What the loss is a mean over."""

    @property
    def loss(self) -> LossSettings:
        """The clipped loss, averaged over tokens or episodes."""
        return LossSettings(loss_type="dapo" if self.average == "token" else "grpo")

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch, scale=self.scale)


@dataclass(frozen=True, slots=True)
class DAPO(Algorithm):
    """DAPO (arXiv:2503.14476): the token mean, and the ratio clipped higher above: 0.8..1.28.

    Deviation: a group of equal returns is not sampled again (it has no advantage and only thins
    the step), and rewards are not shaped by length.
    """

    @property
    def loss(self) -> LossSettings:
        """Clip-higher."""
        return LossSettings(epsilon_high=0.28)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch)


@dataclass(frozen=True, slots=True)
class DrGRPO(Algorithm):
    """Dr. GRPO (arXiv:2503.20783): A_i = R_i - mean(R), no length in the loss.

    The tokens' losses are summed and divided by a constant, B times the most tokens of an episode.
    """

    @property
    def loss(self) -> LossSettings:
        """The constant normaliser."""
        return LossSettings(loss_type="dr_grpo")

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch, scale=False)


@dataclass(frozen=True, slots=True)
class GSPO(Algorithm):
    """GSPO (arXiv:2507.18071): one ratio an episode, (pi/pi_old)^(1/n) over its n sampled tokens.

    Clipped to 1 - 3e-4 .. 1 + 4e-4, the paper's; the loss is the mean over episodes.
    """

    @property
    def loss(self) -> LossSettings:
        """The sequence's ratio and its narrow bounds."""
        return LossSettings(
            loss_type="grpo",
            importance_sampling_level="sequence",
            epsilon=3e-4,
            epsilon_high=4e-4,
        )

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch)


@dataclass(frozen=True, slots=True)
class CISPO(Algorithm):
    """CISPO (arXiv:2506.13585): -min(ratio, 5) A log pi, the weight cut and no token dropped.

    The bound is ScaleRL's (arXiv:2510.13786), as the first paper names none.
    """

    @property
    def loss(self) -> LossSettings:
        """The truncated weight."""
        return LossSettings(loss_type="cispo", epsilon_high=5.0)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch)


@dataclass(frozen=True, slots=True)
class BNPO(Algorithm):
    """GRPO with the token mean of each forward pass, TRL's `bnpo`.

    A step is one pass of TRL's here, so this is `grpo` unless TRL is told to accumulate several.
    """

    @property
    def loss(self) -> LossSettings:
        """The pass's own token mean."""
        return LossSettings(loss_type="bnpo")

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch)


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
            raise ConfigError(f"kl is at least 0, got {self.kl}")

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
