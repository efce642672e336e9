"""What an algorithm sees and what it gives: a batch of episodes, and an advantage a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from agentgym_env.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """All B = P*G episodes of a step, of every process, padded to T tokens and K turns.

    A batch is global: baselines and whitening look at the whole of it, so processes gather their
    rows before, and cut their own rows out of the advantages after. Rows i*G .. i*G+G-1 share
    task and seed.
    """

    loss_mask: Tensor
    """(B, T) 1.0 where the policy sampled the token."""
    rewards: Tensor
    """(B, K) reward of turn k; 0.0 past the end."""
    turn_ends: Tensor
    """(B, K) int64, index just past the last sampled token of turn k; 0 past the end."""
    teaches: Tensor
    """(B,) bool, False for an episode that does not train: it is in no baseline, whitening or
    count, and has no advantage."""
    group_size: int
    """G."""
    states: Tensor
    """(B, K) int64 id of the observation that turn k answers: equal text has equal ids; -1 past
    the end."""
    truncated: Tensor
    """(B,) bool, True where the horizon or the token budget cut the episode off."""
    logprobs: Tensor | None = None
    """(B, T) log-probability of each sampled token under the policy that sampled it."""
    ref_logprobs: Tensor | None = None
    """(B, T) the same under the reference policy."""
    values: Tensor | None = None
    """(B, T) the critic's estimate before token t: read where the token before it stands."""

    @property
    def trained(self) -> Tensor:
        """(B, T) bool: the sampled tokens of the episodes that teach."""
        return (self.loss_mask > 0) & self.teaches.unsqueeze(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """How TRL makes a loss out of the advantages: names and meanings are `GRPOConfig`'s."""

    loss_type: str = "dapo"
    """What the tokens' losses are averaged over; `dapo` is the mean over the step's tokens."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Whether new and old policy are compared token by token or over the whole episode."""
    epsilon: float = 0.2
    """The ratio is clipped below at 1 - epsilon."""
    epsilon_high: float | None = None
    """The ratio is clipped above at 1 + epsilon_high, epsilon if None; for `cispo` the bound."""


class Algorithm(Protocol):
    """An advantage estimator: a frozen dataclass whose fields are its hyper-parameters.

    A subclass defines `advantages`. The defaults are the token-mean loss, no critic and no
    reference.
    """

    loss_type: ClassVar[str] = "dapo"
    """TRL's name of the loss, where `loss` is not overridden."""
    needs_critic: ClassVar[bool] = False
    """Whether `TokenBatch.values` is needed; it then is an `ActorCritic`."""

    @property
    def needs_reference(self) -> bool:
        """Whether `TokenBatch.ref_logprobs` is needed."""
        return False

    @property
    def loss(self) -> LossSettings:
        """The loss the advantages go into."""
        return LossSettings(loss_type=self.loss_type)

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T) float32, zero off the mask and for episodes that do not teach."""
        ...


def check_share(name: str, value: float) -> None:
    """Raise `BadRequest` for a discount or a decay that is not in 0..1."""
    if not 0 <= value <= 1:
        raise BadRequest(f"{name} is from 0 to 1, got {value}")


def given(tensor: Tensor | None, name: str, algorithm: str) -> Tensor:
    """`tensor` in float64; raises `BadRequest` if the batch was made without it."""
    if tensor is None:
        raise BadRequest(
            f"{algorithm} needs {name}, and the batch has none; fill TokenBatch.{name}"
        )
    return tensor.to(torch.float64)
