"""Which recorded episodes are used: outcomes, filters, and rules of preference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, get_args

from agentgym_env.errors import TEACHES, ConfigError, Outcome, teaches
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.checks import AboveZero, Count, Positive, Settings, check_fields

TRUNCATED: Final[frozenset[str]] = frozenset({"horizon", "world_limit", "token_budget"})
"""Outcomes of episodes that were truncated, not terminated by the environment."""

CountTokens = Callable[[Trajectory], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter(Settings):
    """Which episodes to keep. The defaults keep all that are not lost."""

    success: bool = False
    """Keep only successes."""
    min_reward: float | None = None
    """Keep only episodes with at least this reward."""
    min_turns: Count = 1
    """Keep only episodes with at least this many turns."""
    max_turns: Positive | None = None
    """Keep only episodes with at most this many turns."""
    max_episode_tokens: Positive | None = None
    """Maximum tokens of an episode's longest context, including prompt and observations."""
    tokenizer: str | None = None
    """Folder or hub id of the model whose tokenizer counts the tokens. Without it the stored tokens
    count, which only episodes of a local model have."""
    unique: bool = False
    """Keep only the first episode of those with the same task and actions."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_turns is not None and self.max_turns < self.min_turns:
            raise ConfigError(
                f"max_turns {self.max_turns} is below min_turns {self.min_turns}: no episode "
                "could be kept"
            )

    def objection(self, trajectory: Trajectory, count_tokens: CountTokens) -> str | None:
        """The reason to drop an episode, apart from `unique`; None if it is kept."""
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


@dataclass(frozen=True, slots=True)
class PairRules(Settings):
    """When one episode is preferred to another. A success is always preferred to a failure."""

    shorter: bool = False
    """Of two successes, prefer the one with fewer turns."""
    reward_gap: AboveZero | None = None
    """Prefer the episode whose reward is higher by at least this, if both are successes or both
    are not. It takes precedence over `shorter`. None ignores rewards."""
    most: Positive | None = 4
    """Maximum pairs per start, from as many different episodes as possible; None for all."""

    def prefers(self, one: Trajectory, other: Trajectory) -> bool:
        """Whether `one` is preferred to `other`; both have the same start."""
        if one.success != other.success:
            return one.success
        if self.reward_gap is not None:
            gap = one.reward - other.reward
            if abs(gap) >= self.reward_gap:
                return gap > 0
        return self.shorter and one.success and len(one.turns) < len(other.turns)


def trained_outcomes(names: Iterable[str]) -> frozenset[str]:
    """The outcomes whose episodes are in the loss and in their group's baseline.

    Without an outcome such as `horizon`, its episodes are excluded from both. Outcomes of lost
    episodes are not allowed, since they contain no information about the policy.
    """
    chosen = frozenset(names)
    allowed = [outcome for outcome in get_args(Outcome) if outcome in TEACHES]
    if wrong := sorted(chosen - TEACHES):
        raise ConfigError(
            f"train_outcomes has {', '.join(wrong)}; choose from {', '.join(allowed)}. Episodes "
            "with another outcome are lost, and their reward is unknown"
        )
    if not chosen:
        raise ConfigError(f"train_outcomes is empty; choose from {', '.join(allowed)}")
    return chosen
