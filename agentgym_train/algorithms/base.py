"""Algorithm and TokenBatch: the interface of advantage estimators, and shared functions."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import AtLeastOne, NonNegative, Share, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The B = P*G episodes of a step, of all processes, padded to T tokens and K turns.

    Baselines and whitening use all episodes of a step, so the processes gather their rows first and
    take their own rows of the advantages afterwards. Rows i*G .. i*G+G-1 share task and seed.
    """

    loss_mask: Tensor
    """(B, T) 1.0 where the policy sampled the token."""
    rewards: Tensor
    """(B, K) reward of turn k; 0.0 past the last turn."""
    turn_ends: Tensor
    """(B, K) int64, index after the last sampled token of turn k; 0 past the last turn."""
    trainable: Tensor
    """(B,) bool, whether the episode is trained on. If False, it is excluded from baselines,
    whitening and counts, and has no advantage."""
    group_size: int
    """G."""
    states: Tensor
    """(B, K) int64 hash of the observation before turn k; -1 past the last turn."""
    truncated: Tensor
    """(B,) bool, whether the horizon or the token budget truncated the episode."""
    logprobs: Tensor | None = None
    """(B, T) log-probability of each sampled token under the policy that sampled it."""
    policy_logprobs: Tensor | None = None
    """(B, T) log-probability of each sampled token as the trainer computes it before the update.
    Given if the algorithm needs a reference policy; `logprobs` are of the engine, which may round
    differently."""
    ref_logprobs: Tensor | None = None
    """(B, T) log-probability of each sampled token under the reference policy."""
    values: Tensor | None = None
    """(B, T) the critic's value before token t, computed at the previous token's position."""
    envs: Tensor | None = None
    """(B,) int64 number of the episode's environment; None if the run has one."""

    @property
    def trained(self) -> Tensor:
        """(B, T) bool: the sampled tokens of the episodes that are trained on."""
        return (self.loss_mask > 0) & self.trainable.unsqueeze(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The policy's loss: a weighted sum over the sampled tokens of an update.

    r is the importance ratio pi/pi_old, A the advantage.
    """

    kind: Literal["clip", "cispo", "sapo"] = "clip"
    """`clip` is PPO's -min(r A, clip(r) A) (arXiv:1707.06347), `cispo` is
    -min(r, epsilon_high) A log pi without a gradient of r (arXiv:2506.13585), and `sapo` has a soft
    gate of r (arXiv:2511.20347)."""
    ratio: Literal["token", "sequence"] = "token"
    """Whether r is per token, or the geometric mean over the tokens of a row (arXiv:2507.18071)."""
    mean: Literal["token", "sequence", "constant", "episode"] = "token"
    """The weight of a token: 1 / all tokens; 1 / (tokens of its episode * episodes), a mean over
    episodes of means; 1 / (`max_tokens` * episodes) (arXiv:2503.20783); or 1 / episodes."""
    epsilon: Share = 0.2
    """Lower clip bound of r: 1 - epsilon."""
    epsilon_high: NonNegative | None = None
    """Upper clip bound: 1 + epsilon_high; None uses epsilon. For `cispo` it is the bound itself."""
    delta: AtLeastOne | None = None
    """Upper bound of r where A is negative (two-sided clipping); None has none."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind == "cispo" and self.epsilon_high is None:
            raise ConfigError("loss.kind cispo needs epsilon_high, the bound of the ratio: 5, say")
        unused = {"delta": self.kind != "clip", "epsilon_high": self.kind == "sapo"}
        for name, is_unused in unused.items():
            if is_unused and getattr(self, name) is not None:
                raise ConfigError(f"loss.{name} has no effect with loss.kind {self.kind}")


class Algorithm(Protocol):
    """An advantage estimator: a frozen dataclass whose fields are its hyper-parameters.

    A subclass defines `advantages`. The defaults are the clipped loss as a mean over tokens, no
    critic and no reference policy.
    """

    needs_critic: ClassVar[bool] = False
    """Whether `TokenBatch.values` is needed; such an algorithm is an `ActorCritic`."""

    @property
    def needs_reference(self) -> bool:
        """Whether `TokenBatch.ref_logprobs` is needed."""
        return False

    @property
    def loss(self) -> LossSettings:
        """Settings of the loss; a config's `algorithm.loss` overrides them one by one."""
        return LossSettings()

    def advantages(self, batch: TokenBatch) -> Tensor:
        """(B, T) float32 advantages; 0 off the mask and for episodes that are not trained on."""
        ...


def advantages_per_env(algorithm: Algorithm, batch: TokenBatch) -> Tensor:
    """(B, T) advantages, computed separately for the episodes of each environment.

    Baselines of groups are the same either way, since a group is in one environment. Whitening over
    the step otherwise makes every success in an easy environment better than average.
    """
    if batch.envs is None:
        return _advantages(algorithm, batch)
    found = torch.zeros(batch.loss_mask.shape)  # (B, T)
    for env in batch.envs.unique():
        rows = (batch.envs == env).nonzero()[:, 0]  # (rows,)
        own: dict[str, Any] = {
            f.name: value[rows]
            for f in fields(batch)
            if isinstance(value := getattr(batch, f.name), Tensor)
        }
        found[rows] = _advantages(algorithm, replace(batch, **own))
    return found


def _advantages(algorithm: Algorithm, batch: TokenBatch) -> Tensor:
    found = algorithm.advantages(batch)  # (B, T)
    if not isinstance(found, Tensor) or found.shape != batch.loss_mask.shape:
        is_what = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"the advantages of {type(algorithm).__name__} are {is_what}, but must be a tensor of "
            f"shape (B, T), here {list(batch.loss_mask.shape)}, as batch.loss_mask is"
        )
    return found


def given(tensor: Tensor | None, name: str, algorithm: str) -> Tensor:
    """`tensor` in float64; raises `ConfigError` if the batch does not contain it."""
    if tensor is None:
        raise ConfigError(
            f"{algorithm} needs {name}, but the batch has none; set TokenBatch.{name}"
        )
    return tensor.to(torch.float64)


_TINY = 1e-4
"""TRL's value, so that a group's advantages equal TRL's."""


def centered(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """(M,) each value minus its group's mean, 0 in a group of one; (M,) the group's size."""
    if not len(values):
        return values, values
    sums = values.new_zeros(int(groups.max()) + 1)
    sizes = sums.index_add(0, groups, torch.ones_like(values))[groups]  # (M,)
    means = sums.index_add(0, groups, values)[groups] / sizes  # (M,)
    return values - means, sizes


def against_group(values: Tensor, groups: Tensor, *, scale: bool) -> Tensor:
    """(M,) value - group mean, divided by the group's standard deviation (n - 1) if `scale`."""
    differences, sizes = centered(values, groups)
    if not scale or not len(values):
        return differences
    sums = values.new_zeros(int(groups.max()) + 1)
    squares = sums.index_add(0, groups, differences.square())[groups]  # (M,)
    return differences / ((squares / (sizes - 1).clamp(min=1)).sqrt() + _TINY)


def group_of_rows(batch: TokenBatch) -> Tensor:
    """(B,) int64 group index of each episode."""
    rows = torch.arange(len(batch.rewards), device=batch.rewards.device)
    return rows // batch.group_size


def episodes_against_group(batch: TokenBatch, *, scale: bool) -> Tensor:
    """(B,) float64 group-relative returns; 0 for episodes that are not trained on."""
    returns = batch.rewards.to(torch.float64).sum(1)  # (B,)
    trainable = batch.trainable
    advantages = torch.zeros_like(returns)  # (B,)
    advantages[trainable] = against_group(
        returns[trainable], group_of_rows(batch)[trainable], scale=scale
    )
    return advantages


def on_tokens(episodes: Tensor, batch: TokenBatch) -> Tensor:
    """(B,) to (B, T) float32: the same value on every sampled token of an episode."""
    return (episodes.unsqueeze(1) * batch.trained).to(torch.float32)


_TINY_RAGGED = 1e-8


def exclusive_cumsum(mask: Tensor) -> Tensor:
    """(B, T) int64: number of true entries of the row's mask before each position."""
    return mask.long().cumsum(1) - mask.long()


def valid(mask: Tensor) -> Tensor:
    """(B, N) bool: the used positions of packed rows; N is the maximum per row, at least 1."""
    sizes = mask.sum(1, keepdim=True)  # (B, 1)
    width = max(1, int(sizes.max()) if len(mask) else 1)
    return torch.arange(width, device=mask.device).unsqueeze(0) < sizes  # (B, N)


def pack(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T) to (B, N): the masked entries of each row moved to the front, then zeros."""
    places = valid(mask)  # (B, N)
    packed = x.new_zeros(places.shape)  # (B, N)
    packed[places] = x[mask]
    return packed


def unpack(x: Tensor, mask: Tensor) -> Tensor:
    """(B, N) to (B, T): the inverse of `pack`; zeros off the mask."""
    spread = x.new_zeros(mask.shape)  # (B, T)
    spread[mask] = x[valid(mask)]
    return spread


def discounted_sums(x: Tensor, discount: float) -> Tensor:
    """(B, N): y_t = x_t + discount * y_{t+1}.

    By doubling: after j rounds y_t contains 2^j terms, so log2(N) rounds are enough.
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
    """The turns with sampled tokens of the trained episodes; A is the maximum per episode."""

    valid: Tensor
    """(B, A) bool, False past an episode's last turn."""
    rewards: Tensor
    """(B, A) float64."""
    starts: Tensor
    """(B, A) int64 column of the turn's first sampled token; 0 past the last turn."""
    states: Tensor
    """(B, A) int64 hash of the observation before the turn; -1 past the last turn."""
    of_token: Tensor
    """(B, T) int64 turn index of each sampled token; 0 off the mask."""

    def on_tokens(self, x: Tensor, batch: TokenBatch) -> Tensor:
        """(B, A) to (B, T) float32: each turn's value on all its sampled tokens."""
        return (x.gather(1, self.of_token) * batch.trained).to(torch.float32)


def token_rewards(batch: TokenBatch) -> Tensor:
    """(B, N) float64 rewards of the sampled tokens: each turn's reward at its last token."""
    packed = valid(batch.trained)  # (B, N)
    rewards = torch.zeros(packed.shape, dtype=torch.float64, device=packed.device)  # (B, N)
    rewards.scatter_add_(1, _landing(batch), batch.rewards.to(torch.float64))
    return rewards * packed


def turns_of(batch: TokenBatch) -> Turns:
    """The turns of a batch."""
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
    before = exclusive_cumsum(pad(batch.trained, (0, 1)))  # (B, T + 1)
    return before.gather(1, batch.turn_ends)


def _landing(batch: TokenBatch) -> Tensor:
    """(B, K) int64: index of the sampled token that gets a turn's reward.

    It is the last token sampled before the turn's end, which is in an earlier turn if this one has
    no tokens, or the episode's first token if there is no earlier one.
    """
    return (_sampled_by_end(batch) - 1).clamp(min=0)
