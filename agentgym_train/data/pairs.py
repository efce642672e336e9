"""Pairs of episodes for DPO: two with the same start, of which one is better.

Knows nothing about tokens or models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agentgym_env.errors import teaches
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.episodes import PairRules


@dataclass(frozen=True, slots=True)
class Pair:
    """Two episodes with the same first prompt."""

    chosen: Trajectory
    rejected: Trajectory


Start = tuple[str, str, int, str, str]


def start_of(trajectory: Trajectory) -> Start:
    """What two episodes must share to be compared: the task, its seed, and the first prompt."""
    return (
        trajectory.env,
        trajectory.task,
        trajectory.seed,
        trajectory.instruction,
        trajectory.observation,
    )


def responses_of(trajectory: Trajectory) -> tuple[str, ...]:
    """The policy's responses: all that distinguishes two episodes with the same start."""
    return tuple(turn.response for turn in trajectory.turns)


def make_pairs(trajectories: Iterable[Trajectory], rules: PairRules | None = None) -> list[Pair]:
    """The pairs of all starts, in the order in which the starts appear first.

    Episodes that are not trained on, or have no turn, are excluded. Of several episodes with the
    same responses the first is used. A success and a failure with the same responses never form a
    pair, because chance in the environment made the difference.
    """
    rules = rules or PairRules()
    by_start: dict[Start, list[Trajectory]] = {}
    for trajectory in trajectories:
        if teaches(trajectory.outcome) and trajectory.turns:
            by_start.setdefault(start_of(trajectory), []).append(trajectory)
    return [pair for episodes in by_start.values() for pair in _pairs_of(episodes, rules)]


def _pairs_of(episodes: Sequence[Trajectory], rules: PairRules) -> Iterator[Pair]:
    different = list({(responses_of(t), t.success): t for t in reversed(episodes)}.values())[::-1]
    candidates = [
        (i, j)
        for i, one in enumerate(different)
        for j, other in enumerate(different)
        if rules.prefers(one, other) and responses_of(one) != responses_of(other)
    ]
    chosen, rejected = [0] * len(different), [0] * len(different)
    for _ in range(len(candidates) if rules.most is None else min(rules.most, len(candidates))):
        # The pair whose episodes were used least on their side; the first of several.
        i, j = min(candidates, key=lambda pair: (chosen[pair[0]] + rejected[pair[1]], pair))
        candidates.remove((i, j))
        chosen[i] += 1
        rejected[j] += 1
        yield Pair(different[i], different[j])
