"""Algorithm and TokenBatch: what an algorithm sees, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentgym_env.errors import ConfigError


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
    """Raise `ConfigError` for a discount or a decay that is not in 0..1."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is from 0 to 1, got {value}")


def given(tensor: Tensor | None, name: str, algorithm: str) -> Tensor:
    """`tensor` in float64; raises `ConfigError` if the batch was made without it."""
    if tensor is None:
        raise ConfigError(
            f"{algorithm} needs {name}, and the batch has none; fill TokenBatch.{name}"
        )
    return tensor.to(torch.float64)


_TINY = 1e-4

"""TRL's own, so that a group's advantages are TRL's to the last digit."""


def centered(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """(M,) each value minus its group's mean, 0 in a group of one; (M,) the group's size."""
    if not len(values):
        return values, values
    sums = values.new_zeros(int(groups.max()) + 1)
    sizes = sums.index_add(0, groups, torch.ones_like(values))[groups]  # (M,)
    means = sums.index_add(0, groups, values)[groups] / sizes  # (M,)
    return values - means, sizes


def against_group(values: Tensor, groups: Tensor, *, scale: bool) -> Tensor:
    """(M,) (value - group mean), over the group's standard deviation (with n - 1) if `scale`."""
    differences, sizes = centered(values, groups)
    if not scale or not len(values):
        return differences
    sums = values.new_zeros(int(groups.max()) + 1)
    squares = sums.index_add(0, groups, differences.square())[groups]  # (M,)
    return differences / ((squares / (sizes - 1).clamp(min=1)).sqrt() + _TINY)


def group_of_rows(batch: TokenBatch) -> Tensor:
    """(B,) int64: which group each episode is of."""
    rows = torch.arange(len(batch.rewards), device=batch.rewards.device)
    return rows // batch.group_size


def episodes_against_group(batch: TokenBatch, *, scale: bool) -> Tensor:
    """(B,) float64: each return against those of its group that teach; 0 for one that does not."""
    returns = batch.rewards.to(torch.float64).sum(1)  # (B,)
    teaching = batch.teaches
    advantages = torch.zeros_like(returns)  # (B,)
    advantages[teaching] = against_group(
        returns[teaching], group_of_rows(batch)[teaching], scale=scale
    )
    return advantages


def on_tokens(episodes: Tensor, batch: TokenBatch) -> Tensor:
    """(B,) to (B, T) float32: the same on every sampled token of an episode."""
    return (episodes.unsqueeze(1) * batch.trained).to(torch.float32)


_TINY_RAGGED = 1e-8


def ranks(mask: Tensor) -> Tensor:
    """(B, T) int64: how many entries of the row's mask stand before each place."""
    return mask.long().cumsum(1) - mask.long()


def valid(mask: Tensor) -> Tensor:
    """(B, N) bool: the places of a packed row that are filled; N is the fullest row's, or 1."""
    sizes = mask.sum(1, keepdim=True)  # (B, 1)
    width = max(1, int(sizes.max()) if len(mask) else 1)
    return torch.arange(width, device=mask.device).unsqueeze(0) < sizes  # (B, N)


def pack(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T) to (B, N): the masked entries of each row moved to its front, zeros after them."""
    places = valid(mask)  # (B, N)
    packed = x.new_zeros(places.shape)  # (B, N)
    packed[places] = x[mask]
    return packed


def unpack(x: Tensor, mask: Tensor) -> Tensor:
    """(B, N) to (B, T), `pack`'s inverse; zeros off the mask."""
    spread = x.new_zeros(mask.shape)  # (B, T)
    spread[mask] = x[valid(mask)]
    return spread


def discounted_sums(x: Tensor, discount: float) -> Tensor:
    """(B, N): y_t = x_t + discount * y_{t+1}.

    By doubling: after j rounds y_t holds the next 2^j terms, so log2(N) rounds do.
    """
    sums, reach = x, 1
    while reach < x.shape[1]:
        near = sums[:, :-reach] + discount**reach * sums[:, reach:]  # (B, N - reach)
        sums = torch.cat([near, sums[:, -reach:]], 1)  # (B, N)
        reach *= 2
    return sums


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(B, N): mean 0 and standard deviation 1 (with n - 1) over the mask, zero off it."""
    whitened = torch.zeros_like(x)  # (B, N)
    chosen = x[mask]  # (M,)
    if len(chosen):
        centered = chosen - chosen.mean()  # (M,)
        deviation = (centered.square().sum() / max(1, len(chosen) - 1)).sqrt()
        whitened[mask] = centered / (deviation + _TINY_RAGGED)
    return whitened


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns with a sampled token, in order, of the episodes that teach: A at most in one."""

    valid: Tensor
    """(B, A) bool, False past an episode's last."""
    rewards: Tensor
    """(B, A) float64."""
    starts: Tensor
    """(B, A) int64 column of the turn's first sampled token; 0 past the end."""
    states: Tensor
    """(B, A) int64 id of the observation the turn answers; -1 past the end."""
    of_token: Tensor
    """(B, T) int64 which of them a sampled token is of; 0 off the mask."""

    def on_tokens(self, x: Tensor, batch: TokenBatch) -> Tensor:
        """(B, A) to (B, T) float32: each turn's number on every token sampled in it."""
        return (x.gather(1, self.of_token) * batch.trained).to(torch.float32)


def token_rewards(batch: TokenBatch) -> Tensor:
    """(B, N) float64: each turn's reward at its last sampled token, sampled tokens alone."""
    packed = valid(batch.trained)  # (B, N)
    rewards = torch.zeros(packed.shape, dtype=torch.float64, device=packed.device)  # (B, N)
    rewards.scatter_add_(1, _landing(batch), batch.rewards.to(torch.float64))
    return rewards * packed


def turns_of(batch: TokenBatch) -> Turns:
    """The batch's turns as steps."""
    mask = batch.trained  # (B, T)
    ends = _sampled_by_end(batch)  # (B, K)
    begins = pad(ends[:, :-1], (1, 0))  # (B, K) tokens sampled before the turn
    acted = ends > begins  # (B, K)
    filled = valid(acted)  # (B, A)

    first = torch.zeros_like(valid(mask))  # (B, N) True at a turn's first token
    rows, _ = acted.nonzero(as_tuple=True)
    first[rows, begins[acted]] = True
    turn = (first.long().cumsum(1) - 1).clamp(min=0)  # (B, N)

    rewards = torch.zeros(filled.shape, dtype=torch.float64, device=mask.device)  # (B, A)
    rewards.scatter_add_(1, turn.gather(1, _landing(batch)), batch.rewards.to(torch.float64))
    columns = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)  # (B, T)
    firsts = pack(columns, mask).gather(1, begins.clamp(max=first.shape[1] - 1))  # (B, K)
    return Turns(
        valid=filled,
        rewards=rewards * filled,
        starts=pack(firsts, acted),
        states=pack(batch.states, acted).masked_fill(~filled, -1),
        of_token=unpack(turn, mask),
    )


def _sampled_by_end(batch: TokenBatch) -> Tensor:
    """(B, K) int64: tokens sampled up to the end of each turn; 0 past the last turn."""
    before = ranks(pad(batch.trained, (0, 1)))  # (B, T + 1)
    return before.gather(1, batch.turn_ends)


def _landing(batch: TokenBatch) -> Tensor:
    """(B, K) int64: the sampled token that takes a turn's reward.

    The last one sampled by the turn's end, which is of an earlier turn if this one has none; the
    episode's first if nothing had been sampled yet.
    """
    return (_sampled_by_end(batch) - 1).clamp(min=0)
