"""Small settings with rules of their own: episode filters, pairs, rollout limits and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, get_args

from agentgym_env.errors import TEACHES, ConfigError, Outcome, teaches
from agentgym_env.trajectory import Trajectory

TRUNCATED: Final[frozenset[str]] = frozenset({"horizon", "token_budget"})

"""The endings that cut off an episode which the world would have let go on."""


def trained_outcomes(names: Iterable[str]) -> frozenset[str]:
    """The outcomes whose episodes are in the loss and in their group's baseline.

    Leaving one out, such as `horizon`, drops its episodes from both, as if they had not been
    played. A lost episode can not be chosen: it tells nothing about the policy.
    """
    chosen = frozenset(names)
    unknown = sorted(chosen - set(get_args(Outcome)))
    if unknown:
        raise ConfigError(
            f"no outcome {', '.join(unknown)}; choose from {', '.join(get_args(Outcome))}"
        )
    lost = sorted(chosen - TEACHES)
    if lost:
        raise ConfigError(
            f"{', '.join(lost)} can not train: the episode was lost and its reward is unknown. "
            f"Choose from {', '.join(o for o in get_args(Outcome) if o in TEACHES)}"
        )
    if not chosen:
        raise ConfigError("no outcome trains; name at least one, such as success and failure")
    return chosen


@dataclass(frozen=True, slots=True)
class PairRules:
    """When one episode is preferred to another. A success always is to what is none."""

    shorter: bool = False
    """Of two successes, prefer the one with fewer turns."""
    reward_gap: float | None = None
    """Of two that are no successes, prefer the one whose reward is higher by at least this; of
    two successes as well, before their turns are counted. None leaves rewards aside."""
    most: int | None = 4
    """Most pairs of one start, made of as many different episodes as there are; None for all."""

    def __post_init__(self) -> None:
        if self.reward_gap is not None and not self.reward_gap > 0:
            raise ConfigError(f"reward_gap is above 0, got {self.reward_gap:g}; leave it out for 0")
        if self.most is not None and self.most < 1:
            raise ConfigError(f"most pairs of a start is at least 1, got {self.most}")

    def prefers(self, one: Trajectory, other: Trajectory) -> bool:
        """Whether `one` is the better of two episodes that began alike."""
        if one.success != other.success:
            return one.success
        if self.reward_gap is not None:
            gap = one.reward - other.reward
            if abs(gap) >= self.reward_gap:
                return gap > 0
        return self.shorter and one.success and len(one.turns) < len(other.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """What an episode has to be. The defaults take everything that may teach."""

    success: bool = False
    """Only those that solved their task."""
    min_reward: float | None = None
    """Only those with at least this reward."""
    min_turns: int = 1
    max_turns: int | None = None
    max_episode_tokens: int | None = None
    """Of the whole episode, prompt and observations included; of several contexts the longest."""
    tokenizer: str | None = None
    """Folder or hub id of the model whose tokenizer counts; None counts what was sampled, which
    only a model's own episodes have."""
    unique: bool = False
    """Of those with the same task and the same actions only the first."""

    def __post_init__(self) -> None:
        if self.min_turns < 0:
            raise ConfigError(f"min_turns is at least 0, got {self.min_turns}")
        for name, value in (
            ("max_turns", self.max_turns),
            ("max_episode_tokens", self.max_episode_tokens),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is at least 1, got {value}")
        if self.max_turns is not None and self.max_turns < self.min_turns:
            raise ConfigError(
                f"max_turns {self.max_turns} is below min_turns {self.min_turns}: nothing "
                "could be kept"
            )

    def objection(self, trajectory: Trajectory, count_tokens: CountTokens) -> str | None:
        """Why an episode is left out, whatever other episodes there are; None if it is kept."""
        turns = len(trajectory.turns)
        if not teaches(trajectory.outcome):
            return "lost"
        if self.success and not trajectory.success:
            return "no success"
        if self.min_reward is not None and trajectory.reward < self.min_reward:
            return f"reward below {self.min_reward:g}"
        if turns < self.min_turns:
            return f"under {self.min_turns} turns"
        if self.max_turns is not None and turns > self.max_turns:
            return f"over {self.max_turns} turns"
        if (
            self.max_episode_tokens is not None
            and count_tokens(trajectory) > self.max_episode_tokens
        ):
            return f"over {self.max_episode_tokens} tokens"
        return None


CountTokens = Callable[[Trajectory], int]


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """What episodes may use. 0 stands for no limit."""

    engine_concurrency: int = 0
    """Most turns that are being generated at once."""
    env_concurrency: int = 0
    """Most calls to environments that are under way at once."""
    episode_timeout_s: float = 0.0
    """Longest an episode may take, from its slot on and with all its attempts."""
    retries: int = 2
    """Further attempts at an episode whose world or engine was lost."""
