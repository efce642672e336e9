"""Plays an evaluation: a split in memory, or the episodes of a plan that its folder lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from agentgym_env.printable import one_line
from agentgym_env.run_store import BrokenLine, RunStore, each_line
from agentgym_env.trajectory import Trajectory
from agentgym_train.evaluation.plan import Candidate, EvalPlan, eval_starts
from agentgym_train.evaluation.report import EpisodeFigures, EvalReport, figures_of, report_of
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.progress import progress_bar
from agentgym_train.rollout.run_episode import EpisodeActorFactory
from agentgym_train.rollout.runner import RolloutRunner, live_status

_CHUNK: Final = 4096
"""Episodes per call of the runner, which keeps their trajectories in memory until the last ends."""

Stored = dict[tuple[str, int], EpisodeFigures]
"""Episodes by task and seed; a lost one that was played again counts once, as not lost."""


def evaluate(
    rollout_runner: RolloutRunner,
    new_actor: EpisodeActorFactory,
    *,
    split: str,
    horizon: int,
    samples: int = 1,
    seed: int = 0,
    limit: int | None = None,
    per_category: int | None = None,
    instruction: str = "",
    console: Console | None = None,
    label: str = "evaluating",
    rank: int = 0,
    processes: int = 1,
    gathered: Callable[[list[Trajectory]], list[list[Trajectory]]] = lambda own: [own],
) -> tuple[EvalReport, list[Trajectory]]:
    """Play the split and summarize it; raises `ConfigError` if every episode was lost.

    With a console it shows its progress. Each of several processes plays a share, and `gathered`
    returns the shares of all of them.
    """
    every = eval_starts(rollout_runner.tasks, split, samples, seed, limit, per_category)
    starts = every[rank::processes]
    with progress_bar(console or Console(quiet=True)) as progress:
        live = live_status(rollout_runner, progress)
        bar = progress.add_task(label, total=len(starts), status=live)
        played = rollout_runner.collect(
            new_actor,
            starts,
            horizon,
            instruction=instruction,
            on_episode=lambda _: progress.advance(bar),
        )
        shares = gathered(played)
        trajectories = [shares[i % processes][i // processes] for i in range(len(every))]
        report = summarize(trajectories, split=split, samples=samples, seed=seed)
        progress.update(bar, status=f"success {report.success:.2f}")
    return report, trajectories


def summarize(
    trajectories: Sequence[Trajectory], *, split: str, samples: int, seed: int
) -> EvalReport:
    """The report of played episodes; raises `ConfigError` if every episode was lost."""
    first = trajectories[0] if trajectories else None
    return report_of(
        [figures_of(trajectory) for trajectory in trajectories],
        env=first.env if first else "",
        split=split,
        horizon=first.horizon if first else 0,
        samples=samples,
        seed=seed,
    )


def play_policies(
    store: RunStore, plan: EvalPlan, rollout_runner: RolloutRunner, console: Console
) -> dict[str, list[EpisodeFigures]]:
    """Label -> the figures of every start: play the missing episodes and store them.

    An episode is stored when it ends; if the process is killed, only running episodes are lost.
    Lost episodes are played again. Policies play one after another, so only one model is in memory.
    """
    starts = plan.starts(rollout_runner.tasks)
    played = {}
    for policy in plan.policies:
        stored = _read_stored(store, policy, len(starts), console)
        finished = {key for key, figures in stored.items() if figures.counts}
        left = [start for start in starts if (start.task, start.seed) not in finished]
        if left:
            _play_rest(store, plan, policy, rollout_runner, stored, left, console)
        played[policy.label] = [stored[start.task, start.seed] for start in starts]
    return played


def _play_rest(
    store: RunStore,
    plan: EvalPlan,
    policy: Candidate,
    rollout_runner: RolloutRunner,
    stored: Stored,
    left: Sequence[EpisodeSpec],
    console: Console,
) -> None:
    """Play the episodes that are left, and add them to the store and to `stored`."""
    card, total = rollout_runner.card, len(plan.tasks) * plan.samples
    actors = policy.spec.actors(card.instruction, rollout_runner.run, card.tools)
    with actors as new_actor, progress_bar(console) as progress:
        live = live_status(rollout_runner, progress)
        label = escape(one_line(policy.label, 40))
        bar = progress.add_task(label, total=total, status=live, completed=total - len(left))

        def keep(trajectory: Trajectory) -> None:
            store.append_trajectories(policy.file, [trajectory])
            _add(stored, trajectory)
            progress.advance(bar)

        for first in range(0, len(left), _CHUNK):
            rollout_runner.collect(
                new_actor,
                left[first : first + _CHUNK],
                plan.horizon,
                instruction=plan.policy.system_prompt(card.instruction),
                on_episode=keep,
            )
        progress.update(bar, status="")


def _read_stored(store: RunStore, policy: Candidate, requested: int, console: Console) -> Stored:
    """The stored episodes of a policy, and a report of them; an incomplete line is no episode."""
    stored: Stored = {}
    for _, row in each_line(store.path / "trajectories" / f"{policy.file}.jsonl", Trajectory):
        if isinstance(row, BrokenLine):
            text = f"{row.path}, line {row.line} cannot be read ({row.reason}) and is ignored."
            console.print(Text(one_line(text), "yellow"), soft_wrap=True)
        else:
            _add(stored, row)
    found = sum(episode.counts for episode in stored.values())
    if found:
        now = f"; {requested - found} are played now" if found < requested else ""
        text = f"{one_line(policy.label)}: {found} of {requested} episodes are stored already{now}."
        console.print(Text(text), soft_wrap=True)
    return stored


def _add(stored: Stored, trajectory: Trajectory) -> None:
    figures = figures_of(trajectory)
    key = figures.task, figures.seed
    if key not in stored or not stored[key].counts:
        stored[key] = figures
