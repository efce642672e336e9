"""Small settings with rules of their own: episode filters, pairs, rollout limits and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, get_args

from agentgym_env.errors import TEACHES, BadRequest, Outcome, teaches
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
        raise BadRequest(
            f"no outcome {', '.join(unknown)}; there are {', '.join(get_args(Outcome))}"
        )
    lost = sorted(chosen - TEACHES)
    if lost:
        raise BadRequest(
            f"{', '.join(lost)} can not train: the episode was lost and its reward is unknown. "
            f"Choose from {', '.join(o for o in get_args(Outcome) if o in TEACHES)}"
        )
    if not chosen:
        raise BadRequest("no outcome trains; name at least one, such as success and failure")
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
            raise BadRequest(f"reward_gap is above 0, got {self.reward_gap:g}; leave it out for 0")
        if self.most is not None and self.most < 1:
            raise BadRequest(f"most pairs of a start is at least 1, got {self.most}")

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
    least_reward: float | None = None
    """Only those with at least this reward."""
    least_turns: int = 1
    most_turns: int | None = None
    most_tokens: int | None = None
    """Of the whole episode, prompt and observations included; of several contexts the longest."""
    tokenizer: str | None = None
    """Folder or hub id of the model whose tokenizer counts; None counts what was sampled, which
    only a model's own episodes have."""
    unique: bool = False
    """Of those with the same task and the same actions only the first."""

    def __post_init__(self) -> None:
        if self.least_turns < 0:
            raise BadRequest(f"least_turns is at least 0, got {self.least_turns}")
        for name, value in (("most_turns", self.most_turns), ("most_tokens", self.most_tokens)):
            if value is not None and value < 1:
                raise BadRequest(f"{name} is at least 1, got {value}")
        if self.most_turns is not None and self.most_turns < self.least_turns:
            raise BadRequest(
                f"most_turns {self.most_turns} is below least_turns {self.least_turns}: nothing "
                "could be kept"
            )

    def objection(self, trajectory: Trajectory, count_tokens: CountTokens) -> str | None:
        """Why an episode is left out, whatever other episodes there are; None if it is kept."""
        turns = len(trajectory.turns)
        if not teaches(trajectory.outcome):
            return "lost"
        if self.success and not trajectory.success:
            return "no success"
        if self.least_reward is not None and trajectory.reward < self.least_reward:
            return f"reward below {self.least_reward:g}"
        if turns < self.least_turns:
            return f"under {self.least_turns} turns"
        if self.most_turns is not None and turns > self.most_turns:
            return f"over {self.most_turns} turns"
        if self.most_tokens is not None and count_tokens(trajectory) > self.most_tokens:
            return f"over {self.most_tokens} tokens"
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
