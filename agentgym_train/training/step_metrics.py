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
from agentgym_train.rollout.buffer import GroupBatch
from agentgym_train.rollout.episode import INVALID
from agentgym_train.rollout.groups import Group


class TooManyLost(AgentGymError, RuntimeError):
    """The rate of lost episodes in a step is above `max_lost_rate`."""


StepMetrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class StepShare:
    """What a process tells the others about its part of a step; its tokens stay with it."""

    trained: list[Group]
    """Their episodes are without tokens, as those of `rejected`."""
    rejected: list[Group]
    dropped: list[Group]
    """Without episodes."""
    penalties: list[float]
    """`overlong_tokens`' of each trained episode."""
    sampled: int
    """Sampled tokens of the episodes that are not lost, those of rejected groups included."""
    trained_tokens: int
    """Those of the groups that are trained on."""
    behind: int
    """Sum over these of the policy's age in optimizer steps when it sampled them."""
    seconds: float
    """Time the step waited for its episodes."""
    not_finite: int
    """Sampled tokens whose log-probability is not finite."""

    @classmethod
    def from_batch(
        cls,
        batch: GroupBatch,
        step: int,
        seconds: float,
        penalty: Callable[[Trajectory], float] = lambda _: 0.0,
    ) -> StepShare:
        """The share of one process; `penalty` is that on a long episode."""
        trained, rejected = _sampled(batch.trained), _sampled(batch.rejected)
        return cls(
            [_without_tokens(group) for group in batch.trained],
            [_without_tokens(group) for group in batch.rejected],
            batch.dropped,
            [penalty(t) for group in batch.trained for t in group.episodes if t.tokens],
            len(trained) + len(rejected),
            len(trained),
            sum(step - version for version, _ in trained),
            seconds,
            sum(not math.isfinite(logprob) for _, logprob in (*trained, *rejected)),
        )


def _sampled(groups: Sequence[Group]) -> list[tuple[int, float]]:
    """(version of the weights, log-probability) of the sampled tokens of their episodes."""
    rows = [r for group in groups for t in group.episodes if teaches(t.outcome) for r in t.rows]
    return [
        (version, logprob)
        for row in rows
        for version, logprob, mask in zip(row.versions, row.logprobs, row.loss_mask, strict=True)
        if mask
    ]


@dataclass(frozen=True, slots=True)
class Step:
    """A step on all processes."""

    shares: Sequence[StepShare]
    group_size: int

    @property
    def trained(self) -> list[Group]:
        """The groups that are trained on."""
        return [group for share in self.shares for group in share.trained]

    @property
    def rejected(self) -> list[Group]:
        """The groups that others were played for."""
        return [group for share in self.shares for group in share.rejected]

    @property
    def dropped(self) -> list[Group]:
        """The groups that grew too old."""
        return [group for share in self.shares for group in share.dropped]

    @property
    def sampled(self) -> int:
        """Sampled tokens of the episodes that are not lost."""
        return sum(share.sampled for share in self.shares)

    @property
    def not_finite(self) -> int:
        """Sampled tokens whose log-probability is not finite."""
        return sum(share.not_finite for share in self.shares)

    def metrics(self, envs: Sequence[str]) -> StepMetrics:
        """The step's metrics; those of each environment, too, if there are several."""
        trained, rejected = self.trained, self.rejected
        figures = self.metrics_in(None) | {
            "sampled_tokens": float(self.sampled),
            "staleness": sum(share.behind for share in self.shares)
            / max(1, sum(share.trained_tokens for share in self.shares)),
            "dropped": float(len(self.dropped) * self.group_size),
            "rollout_seconds": max(share.seconds for share in self.shares),
        }
        episodes = [t for group in trained for t in group.episodes]
        for outcome, count in Counter(t.outcome for t in episodes).items():
            figures[f"outcome/{outcome}"] = count / len(episodes)
        for reason, count in Counter(group.rejected for group in rejected).items():
            figures[f"rejected/{reason}"] = float(count)
        if len(envs) > 1:
            for number, env in enumerate(envs):
                found = self.metrics_in(number)
                found["episodes"] = float(sum(t.env == env for t in episodes))
                figures |= {f"{name}/{env}": value for name, value in found.items()}
        return figures

    def metrics_in(self, env: int | None) -> StepMetrics:
        """The metrics that need no tokens in one environment, or in all; NaN where it has none.

        Means exclude lost episodes. Episodes of rejected groups count in `success`, since the
        others are not a fair sample, in `env_steps`, and among the lost and the retried.
        """
        trained = [group for group in self.trained if env in (None, group.env)]
        rejected = [group for group in self.rejected if env in (None, group.env)]
        own = [t for group in trained for t in group.episodes]
        discarded = [t for group in rejected for t in group.episodes]
        return _episode_metrics(own, discarded) | {
            "informative_groups": mean([group.is_informative for group in trained])
        }


def _episode_metrics(
    trajectories: Sequence[Trajectory], discarded: Sequence[Trajectory]
) -> StepMetrics:
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


def _without_tokens(group: Group) -> Group:
    """The group without its tokens, which is small enough to store for every step."""
    light = [msgspec.structs.replace(t, tokens=None, further_rows=[]) for t in group.episodes]
    return msgspec.structs.replace(group, episodes=light)


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
