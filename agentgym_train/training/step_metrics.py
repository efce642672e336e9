"""A step's episodes as figures: what each process reports, the metrics, the check of lost ones.

Knows nothing about losses and weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from logging import getLogger

import msgspec

from agentgym_env.errors import AgentGymError, teaches
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.rollout.episode import INVALID


class TooManyLost(AgentGymError, RuntimeError):
    """The rate of lost episodes in a step is above `max_lost_rate`."""


StepMetrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Counts of a step's sampled tokens; the tokens stay in the process that sampled them."""

    sampled: int
    """Sampled tokens of the episodes that are not lost, those of replaced groups included."""
    behind: int
    """Sum over those tokens of the policy's age in optimizer steps when it sampled them."""
    dropped: int
    """Episodes that were started and dropped before their end."""
    seconds: float
    """Time the step waited for its episodes."""
    not_finite: int = 0
    """Sampled tokens whose log-probability is not finite."""

    @classmethod
    def of(
        cls, trajectories: Sequence[Trajectory], step: int, dropped: int, seconds: float
    ) -> StepTokens:
        """The counts of one process."""
        rows = [row for t in trajectories if teaches(t.outcome) for row in t.rows]
        sampled = [
            (version, logprob)
            for row in rows
            for version, logprob, trained in zip(
                row.versions, row.logprobs, row.loss_mask, strict=True
            )
            if trained
        ]
        not_finite = sum(not math.isfinite(logprob) for _, logprob in sampled)
        behind = sum(step - version for version, _ in sampled)
        return cls(len(sampled), behind, dropped, seconds, not_finite)

    @classmethod
    def of_all(cls, shares: Sequence[StepTokens]) -> StepTokens:
        """The counts of all processes."""
        return cls(
            sum(share.sampled for share in shares),
            sum(share.behind for share in shares),
            sum(share.dropped for share in shares),
            max(share.seconds for share in shares),
            sum(share.not_finite for share in shares),
        )


@dataclass(frozen=True, slots=True)
class StepShare:
    """What a process tells the others about its part of a step."""

    trained: list[Trajectory]
    """Without tokens."""
    discarded: list[Trajectory]
    """Of groups that were replaced; without tokens."""
    tokens: StepTokens
    trained_groups: list[tuple[int, str, bool]]
    """(environment, task, whether it is informative) of each group."""
    discarded_groups: list[tuple[int, str, bool]]
    penalties: list[float]
    """`overlong_tokens`' of each trained episode."""


def step_metrics(
    trajectories: Sequence[Trajectory],
    tokens: StepTokens,
    discarded: Sequence[Trajectory] = (),
) -> dict[str, float]:
    """The metrics of a step's episodes of all processes; means exclude lost episodes.

    `discarded` are episodes of groups that were replaced. They count in `success`, since the other
    groups are not a fair sample, in `env_steps`, and among the lost and the retried.
    """
    figures = episode_metrics(trajectories, discarded) | {
        "sampled_tokens": float(tokens.sampled),
        "staleness": tokens.behind / max(1, tokens.sampled),
        "dropped": float(tokens.dropped),
        "rollout_seconds": tokens.seconds,
    }
    for outcome, count in Counter(t.outcome for t in trajectories).items():
        figures[f"outcome/{outcome}"] = count / len(trajectories)
    return figures


def env_metrics(
    trajectories: Sequence[Trajectory], discarded: Sequence[Trajectory], env: str
) -> dict[str, float]:
    """The metrics of a step's episodes in one environment; NaN where it has none."""
    own = [t for t in trajectories if t.env == env]
    return episode_metrics(own, [t for t in discarded if t.env == env]) | {
        "episodes": float(len(own)),
    }


def episode_metrics(
    trajectories: Sequence[Trajectory], discarded: Sequence[Trajectory]
) -> dict[str, float]:
    """The metrics of episodes in one environment or in all, which need no tokens."""
    played = [*trajectories, *discarded]
    kept = [t for t in trajectories if teaches(t.outcome)]
    figures = {
        "reward": mean([t.reward for t in kept]),
        "success": mean([t.success for t in played if teaches(t.outcome)]),
        "horizon": mean([t.horizon for t in trajectories]),
        "turns": mean([len(t.turns) for t in kept]),
        "cut_turns": _cut_turns(kept),
        "env_steps": _env_steps(played),
        "discarded_env_steps": _env_steps(discarded),
        "lost": sum(not teaches(t.outcome) for t in played),
        "retried": sum(t.attempts > 1 for t in played),
    }
    return {name: float(value) for name, value in figures.items()}


def check_lost(
    trajectories: Sequence[Trajectory],
    step: int,
    max_lost_rate: float,
    resume: Callable[[], str] | None = None,
) -> None:
    """Raise `TooManyLost` if the rate of lost episodes in a step is above `max_lost_rate`.

    Crashes of a black-box agent count too: a broken agent must not train on zeros. `resume` makes
    the command that resumes the run.
    """
    lost = [t for t in trajectories if not teaches(t.outcome) or _has_crash(t)]
    share = len(lost) / len(trajectories)
    if not any(t.turns for t in trajectories):
        ends = ", ".join(sorted({t.outcome for t in trajectories}))
        getLogger(__name__).warning("step %d: no episode has a turn (%s)", step, ends)
    if share <= max_lost_rate:
        return
    kinds = Counter("agent_crashed" if _has_crash(t) else t.outcome for t in lost)
    retried = [t for t in trajectories if t.attempts > 1]
    attempts = sum(t.attempts - 1 for t in retried)
    which = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    raise TooManyLost(
        f"{len(lost)} of {len(trajectories)} episodes were lost at step {step} ({which}): a rate "
        f"of {share:.2f}, above limits.max_lost_rate {max_lost_rate:g}. {len(retried)} were "
        f"retried, {attempts} times in total; none of the {len(lost)} is trained on, since the run "
        f"stops. First error: {lost[0].error}. Fix it"
        + (
            f", then resume with `{resume()}` (from the last checkpoint, if there is one)"
            if resume is not None
            else ""
        )
        + (
            ". If the agent crashes because of what the model says, start a new run with "
            "gateway.crashes=failure"
            if kinds["agent_crashed"]
            else ""
        )
    )


def without_tokens(trajectory: Trajectory) -> Trajectory:
    """The episode without its tokens, which is small enough to store for every step."""
    return msgspec.structs.replace(trajectory, tokens=None, further_rows=[])


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")


def _cut_turns(trajectories: Sequence[Trajectory]) -> float:
    """The share of turns that ended at `turn_max_tokens`."""
    return mean([turn.cut for t in trajectories for turn in t.turns])


def _env_steps(trajectories: Sequence[Trajectory]) -> int:
    return sum(map(_steps_of, chain.from_iterable(t.turns for t in trajectories)))


def _steps_of(turn: Turn) -> int:
    """How often the environment answered in a turn: its own info is never empty."""
    if "calls" in turn.info:
        return sum(bool(call["action"]) for call in turn.info["calls"])
    return int(bool(turn.info) and turn.info != INVALID)


def _has_crash(trajectory: Trajectory) -> bool:
    return any(turn.info.get("agent_crashed") for turn in trajectory.turns)
