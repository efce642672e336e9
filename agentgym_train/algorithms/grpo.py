"""GRPO and its variants, RLOO and REINFORCE++: baselines without a critic.

The GRPO variants share the advantage A_i = (R_i - mean(R)) / std(R) on every sampled token. R_i is
the sum of an episode's rewards; mean and std (n - 1) are over the trained episodes of its group. A
group with fewer than two of those has no advantages. The variants differ in the loss. Losses do not
depend on the split of a step into micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentgym_train.algorithms.base import (
    Algorithm,
    LossSettings,
    TokenBatch,
    centered,
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
from agentgym_train.config.checks import NonNegative, Share, check_fields


def group_advantages(batch: TokenBatch, *, scale: bool = True) -> Tensor:
    """(B, T) the advantage above; `scale=False` omits the division."""
    return on_tokens(episodes_against_group(batch, scale=scale), batch)


@dataclass(frozen=True, slots=True)
class GRPO(Algorithm):
    """Group Relative Policy Optimization (arXiv:2402.03300), ratio clipped to 0.8..1.2.

    Deviation: the paper averages over each episode's tokens and then over episodes, which gives
    tokens of long episodes a lower weight. The default here is the mean over all tokens of the
    step, as in AgentGym-RL (verl); `average="sequence"` is the paper's loss.
    """

    scale: bool = True
    """Divide by the group's standard deviation."""
    average: Literal["token", "sequence"] = "token"
    """Whether the loss is a mean over tokens or over episodes."""

    @property
    def loss(self) -> LossSettings:
        """The clipped loss, averaged over tokens or episodes."""
        return LossSettings(mean=self.average)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch, scale=self.scale)


@dataclass(frozen=True, slots=True)
class DAPO(Algorithm):
    """DAPO (arXiv:2503.14476): token mean and clip-higher, ratio clipped to 0.8..1.28.

    Deviation: no dynamic sampling (groups with equal returns stay in the step, with advantage 0)
    and no length-dependent reward.
    """

    @property
    def loss(self) -> LossSettings:
        """The loss with clip-higher."""
        return LossSettings(epsilon_high=0.28)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch)


@dataclass(frozen=True, slots=True)
class DrGRPO(Algorithm):
    """Dr. GRPO (arXiv:2503.20783): A_i = R_i - mean(R), no length normalization.

    The sum of the token losses is divided by a constant: B times the maximum tokens per episode.
    """

    @property
    def loss(self) -> LossSettings:
        """The loss with a constant normalizer."""
        return LossSettings(mean="constant")

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch, scale=False)


@dataclass(frozen=True, slots=True)
class GSPO(Algorithm):
    """GSPO (arXiv:2507.18071): one ratio per episode, (pi/pi_old)^(1/n) over its n sampled tokens.

    The ratio is clipped to 1 - 3e-4 .. 1 + 4e-4, as in the paper; the loss is a mean over episodes.
    """

    @property
    def loss(self) -> LossSettings:
        """The loss with a sequence-level ratio and the paper's clip bounds."""
        return LossSettings(ratio="sequence", mean="sequence", epsilon=3e-4, epsilon_high=4e-4)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch)


@dataclass(frozen=True, slots=True)
class CISPO(Algorithm):
    """CISPO (arXiv:2506.13585): -min(ratio, 5) A log pi; weights are truncated, no token dropped.

    The bound is from ScaleRL (arXiv:2510.13786); the CISPO paper does not report one.
    """

    @property
    def loss(self) -> LossSettings:
        """The loss with truncated importance weights."""
        return LossSettings(kind="cispo", epsilon_high=5.0)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        return group_advantages(batch)


@dataclass(frozen=True, slots=True)
class ReinforcePP(Algorithm):
    """REINFORCE++ (arXiv:2501.03262): G_t = r_t - beta (log pi - log pi_ref)_t + gamma G_next.

    "Next" is the next sampled token, so observation tokens do not discount the return. r_t is the
    turn's reward, at its last sampled token. The advantage is G whitened over all sampled tokens of
    the step: (G - mean(G)) / std(G).
    """

    gamma: Share = 1.0
    """Discount per sampled token."""
    beta: NonNegative = 0.0
    """KL coefficient of the reward (k1 estimator); above 0 it needs a reference policy."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def needs_reference(self) -> bool:
        """Whether the reward contains a KL term."""
        return self.beta > 0

    def returns(self, batch: TokenBatch) -> Tensor:
        """(B, N) float64 returns G of the sampled tokens."""
        rewards = token_rewards(batch)  # (B, N)
        if self.needs_reference:
            policy = given(batch.policy_logprobs, "policy_logprobs", "REINFORCE++ with beta")
            reference = given(batch.ref_logprobs, "ref_logprobs", "REINFORCE++ with beta")
            rewards = rewards - self.beta * pack(policy - reference, batch.trained)  # (B, N)
        return discounted_sums(rewards, self.gamma)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        whitened = whiten(self.returns(batch), valid_places(batch.trained))  # (B, N)
        return unpack(whitened, batch.trained).to(torch.float32)


@dataclass(frozen=True, slots=True)
class ReinforcePPBaseline(Algorithm):
    """REINFORCE++ with baseline (arXiv:2501.03262): R_i - mean(R) of the group, then whitened.

    Whitening is over all sampled tokens of the step, not per group. An episode without another
    trained episode in its group has no advantage and is excluded from whitening. The paper's KL
    term is in the loss: `beta` of the config.
    """

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        differences = episodes_against_group(batch, scale=False)  # (B,)
        groups = group_of_rows(batch)  # (B,)
        peers = torch.zeros_like(groups).index_add(0, groups, batch.trainable.long())[
            groups
        ]  # (B,)
        mask = batch.trained & (peers > 1).unsqueeze(1)  # (B, T)
        return whiten(differences.unsqueeze(1).expand(mask.shape), mask).to(torch.float32)


@dataclass(frozen=True, slots=True)
class RLOO(Algorithm):
    """REINFORCE leave-one-out (arXiv:2402.14740): A_i = R_i - mean of R_j, j != i.

    With n trained episodes in the group this is n/(n-1) (R_i - mean(R)); with n = 1 there is no
    advantage.

    `ratio="token"` uses the clipped token mean. `ratio="sequence"` treats an episode as one action,
    as the paper does: the loss is the mean over episodes of n_i s_i A_i with
    s_i = (pi/pi_old)^(1/n_i) and n_i sampled tokens. On-policy its gradient is the paper's: A_i
    times the gradient of the episode's log-probability. Deviation: off-policy s_i is the geometric
    mean of the ratios (LUSPO, arXiv:2602.05261), clipped as in GSPO, because the product over
    thousands of tokens would always be clipped.
    """

    ratio: Literal["token", "sequence"] = "token"
    """Whether the clipped ratio is per token or per episode."""

    @property
    def loss(self) -> LossSettings:
        """The loss for the ratio."""
        if self.ratio == "token":
            return LossSettings()
        return LossSettings(ratio="sequence", mean="episode", epsilon=3e-4, epsilon_high=4e-4)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T)."""
        returns = batch.rewards.to(torch.float64).sum(1)  # (B,)
        trainable = batch.trainable
        differences, sizes = centered(returns[trainable], group_of_rows(batch)[trainable])
        advantages = torch.zeros_like(returns)  # (B,)
        advantages[trainable] = differences * sizes / (sizes - 1).clamp(min=1)
        return on_tokens(advantages, batch)
