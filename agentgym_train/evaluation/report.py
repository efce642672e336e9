"""EvalReport: the episodes of policies as figures with intervals, and policies compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Final

import msgspec

from agentgym_env.errors import ConfigError, teaches
from agentgym_env.trajectory import Trajectory
from agentgym_train.evaluation.plan import EvalPlan
from agentgym_train.evaluation.statistics import (
    Comparison,
    Interval,
    Values,
    bootstrap_interval,
    compare_values,
    holm,
    mean_of_means,
    pass_at_k,
    rate_interval,
)

_MANY_CUT: Final = 0.1
"""Share of cut turns above which there is a warning."""

_COMPARED: Final = ("success", "score")


@dataclass(frozen=True, slots=True)
class EpisodeFigures:
    """The values of an episode that a report needs, without its texts and tokens."""

    task: str
    seed: int
    """With the task, it identifies the episode: policies are compared on the same episodes."""
    policy: str
    category: str | None
    outcome: str
    success: bool
    score: float
    reward: float
    turns: int
    tokens: int
    """Sampled by the policy."""
    invalid: tuple[int, int] | None
    """(invalid actions, actions); None if the world does not report it."""
    cut: int = 0
    """Turns that ended at `turn_max_tokens`."""
    usage: Mapping[str, int] = field(default_factory=dict)
    """As counted by an endpoint."""
    error: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it is included in means; otherwise it was lost for reasons outside the policy."""
        return teaches(self.outcome)


@dataclass(frozen=True, slots=True)
class CategoryReport:
    """The figures of one of the world's own categories.

    Every interval is a 95 % interval over tasks; it is None for fewer than two tasks.
    """

    episodes: int
    """Episodes included in the means."""
    success: float
    """Share of the episodes that succeeded."""
    turns: float
    tasks: int = 0
    success_interval: Interval | None = None
    pass_at_k: list[float] = field(default_factory=list)
    """For k = 1, 2, ...: the mean over tasks of `pass_at_k`. A task with fewer than k samples,
    because others were lost, is excluded."""
    score: float = 0.0
    """Mean of the world's own score."""
    tokens: float = 0.0
    """Sampled tokens per episode."""
    invalid_actions: float | None = None
    """Share of invalid actions: no action in the response, or one that the world does not
    understand or rejects. None if the world does not report it."""
    cut_turns: float = 0.0
    """Share of turns that ended at `turn_max_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport(CategoryReport):
    """The results of an evaluation. Lost episodes are in no mean and are counted separately."""

    policy: str
    env: str
    split: str
    horizon: int
    """Maximum turns per episode."""
    seed: int
    samples: int
    """Episodes per task."""
    lost: int
    reward: float
    sampled_tokens: int
    """In all episodes."""
    outcomes: dict[str, int]
    categories: dict[str, CategoryReport]
    avg_at_k: float = 0.0
    """The mean over tasks of the share of a task's samples that succeeded."""
    pass_at_k_intervals: list[Interval | None] = field(default_factory=list)
    score_interval: Interval | None = None
    turns_interval: Interval | None = None
    usage: dict[str, int] = field(default_factory=dict)
    """As counted by an endpoint, in all finished episodes."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EvalReport:
        """The report that `as_dict` returned."""
        return msgspec.convert(dict(values), cls)


Reports = dict[str, EvalReport]
"""Evaluations of one policy by environment; empty if there was none."""

EpisodesOf = Mapping[str, Sequence[EpisodeFigures]]
"""Label of a policy -> its episodes."""


@dataclass(frozen=True, slots=True)
class Versus(Comparison):
    """One policy against another by one metric."""

    policy: str
    baseline: str
    figure: str
    p_holm: float
    """The p-value, corrected for the other comparisons of that figure."""


def figures_of(trajectory: Trajectory) -> EpisodeFigures:
    """The figures of one trajectory."""
    sampled = sum(sum(row.loss_mask) for row in trajectory.rows)
    return EpisodeFigures(
        task=trajectory.task,
        seed=trajectory.seed,
        policy=trajectory.policy,
        category=trajectory.category,
        outcome=trajectory.outcome,
        success=trajectory.success,
        score=trajectory.score,
        reward=trajectory.reward,
        turns=len(trajectory.turns),
        tokens=sampled or trajectory.usage.get("completion_tokens", 0),
        invalid=_invalid(trajectory),
        cut=sum(turn.cut for turn in trajectory.turns),
        usage=trajectory.usage,
        error=trajectory.error,
    )


def warn_of_cuts(share: float | None, turn_max_tokens: int) -> str | None:
    """What to do about cut turns, if there are many."""
    if share is None or not share > _MANY_CUT:
        return None
    return (
        f"{share:.0%} of the turns were cut at turn_max_tokens={turn_max_tokens}, so they may end "
        "before their action; raise turn_max_tokens"
    )


def report_of(
    episodes: Sequence[EpisodeFigures],
    *,
    seed: int,
    **facts: Any,
) -> EvalReport:
    """The report of one policy's episodes; raises `ConfigError` if every one was lost."""
    if reason := _why_none_counts(episodes):
        raise ConfigError(reason)
    counted = [episode for episode in episodes if episode.counts]
    by_category: dict[str, list[EpisodeFigures]] = {}
    for episode in counted:
        by_category.setdefault(episode.category or "all", []).append(episode)
    successes = _by_task(counted, "success")
    usage = Counter[str]()
    for episode in episodes:
        usage.update(episode.usage)
    return EvalReport(
        **_shared(counted, seed),
        **facts,
        policy=counted[0].policy,
        seed=seed,
        lost=len(episodes) - len(counted),
        reward=fmean(e.reward for e in counted),
        sampled_tokens=sum(e.tokens for e in counted),
        outcomes=dict(sorted(Counter(e.outcome for e in episodes).items())),
        categories={
            name: CategoryReport(**_shared(part, seed))
            for name, part in sorted(by_category.items())
        },
        avg_at_k=mean_of_means(successes),
        pass_at_k_intervals=[rate_interval(each, seed) for each in _pass_at_k(successes)],
        score_interval=bootstrap_interval(_by_task(counted, "score"), seed),
        turns_interval=bootstrap_interval(_by_task(counted, "turns"), seed),
        usage=dict(sorted(usage.items())),
    )


def compare(
    first: Iterable[EpisodeFigures],
    second: Iterable[EpisodeFigures],
    seed: int,
    figure: str = "success",
) -> Comparison:
    """Compare two policies by `success` or `score`, on the episodes that both finished.

    Raises `ConfigError` if there is none.
    """
    found = {(e.task, e.seed): e for e in second if e.counts}
    pairs = [(e, found[e.task, e.seed]) for e in first if e.counts and (e.task, e.seed) in found]
    if not pairs:
        raise ConfigError("the two policies have no common finished episode")
    ours = _by_task([a for a, _ in pairs], figure)
    theirs = _by_task([b for _, b in pairs], figure)
    return compare_values(ours, theirs, seed)


def without_lost(played: EpisodesOf) -> tuple[EpisodesOf, dict[str, str]]:
    """(the episodes of the policies that have a result, the reasons of those that have none).

    Raises `ConfigError` if none has one.
    """
    lost = {label: why for label, episodes in played.items() if (why := _why_none_counts(episodes))}
    if len(lost) == len(played):
        raise ConfigError(next(iter(lost.values()), "nothing was played"))
    return {label: episodes for label, episodes in played.items() if label not in lost}, lost


def reports_of(plan: EvalPlan, played: EpisodesOf) -> dict[str, EvalReport]:
    """One report per policy."""
    facts = {name: getattr(plan, name) for name in ("env", "split", "horizon", "samples", "seed")}
    return {label: report_of(episodes, **facts) for label, episodes in played.items()}


def comparisons_of(plan: EvalPlan, played: EpisodesOf, baseline: str | None) -> list[Versus]:
    """Compare every other policy with `baseline`, by default the first, by success and by score."""
    against = baseline or next(iter(played))
    others = [label for label in played if label != against]
    found: list[Versus] = []
    for figure in _COMPARED:
        each = [compare(played[o], played[against], plan.seed, figure) for o in others]
        corrected = holm([comparison.p for comparison in each])
        found += [
            Versus(**asdict(comparison), policy=other, baseline=against, figure=figure, p_holm=p)
            for other, comparison, p in zip(others, each, corrected, strict=True)
        ]
    return found


def _by_task(episodes: Iterable[EpisodeFigures], figure: str) -> Values:
    values: dict[str, list[float]] = {}
    for episode in episodes:
        values.setdefault(episode.task, []).append(float(getattr(episode, figure)))
    return list(values.values())


def _why_none_counts(episodes: Sequence[EpisodeFigures]) -> str:
    """Why there is nothing to report, if every episode was lost; else empty."""
    if any(episode.counts for episode in episodes):
        return ""
    error = next((episode.error for episode in episodes), "nothing was played")
    return f"all {len(episodes)} episodes were lost; the first error: {error}"


def _pass_at_k(successes: Values) -> list[Values]:
    """For k = 1, 2, ...: pass@k of each task with at least k samples, in a list of one."""
    return [
        [[pass_at_k(len(task), int(sum(task)), k)] for task in successes if len(task) >= k]
        for k in range(1, max(map(len, successes)) + 1)
    ]


def _shared(episodes: Sequence[EpisodeFigures], seed: int) -> dict[str, Any]:
    """The figures that an evaluation and each of its categories have."""
    successes = _by_task(episodes, "success")
    return {
        "episodes": len(episodes),
        "success": fmean(e.success for e in episodes),
        "turns": fmean(e.turns for e in episodes),
        "tasks": len(successes),
        "success_interval": rate_interval(successes, seed),
        "pass_at_k": [mean_of_means(each) for each in _pass_at_k(successes)],
        "score": fmean(e.score for e in episodes),
        "tokens": fmean(e.tokens for e in episodes),
        "invalid_actions": _invalid_rate(episodes),
        "cut_turns": sum(e.cut for e in episodes) / max(1, sum(e.turns for e in episodes)),
    }


def _invalid(trajectory: Trajectory) -> tuple[int, int] | None:
    reached = [turn.info for turn in trajectory.turns if "turn" in turn.info]
    if not all("invalid_action" in info for info in reached):
        return None
    # A text without an action never reached the world, whose infos count turns.
    invalid = [
        turn.info["invalid_action"] for turn in trajectory.turns if "invalid_action" in turn.info
    ]
    return sum(map(bool, invalid)), len(invalid)


def _invalid_rate(episodes: Iterable[EpisodeFigures]) -> float | None:
    invalid = taken = 0
    for episode in episodes:
        if episode.invalid is None:
            return None
        invalid, taken = invalid + episode.invalid[0], taken + episode.invalid[1]
    return invalid / taken if taken else None
