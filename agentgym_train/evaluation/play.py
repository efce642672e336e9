"""Plays an evaluation: a split in memory, or the episodes of a plan that its folder lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from agentgym_env.printable import one_line
from agentgym_env.run_store import BrokenLine, RunStore, each_line
from agentgym_env.trajectory import Trajectory
from agentgym_train.evaluation.plan import EvalPlan, eval_starts, starts_of
from agentgym_train.evaluation.report import EpisodeFigures, EvalReport, figures_of, report_of
from agentgym_train.rollout.episode import EpisodeActorFactory, EpisodeSpec
from agentgym_train.rollout.policy_spec import PolicySpec
from agentgym_train.rollout.progress import progress_bar
from agentgym_train.rollout.runner import RolloutRunner, live_status

_CHUNK: Final = 4096
"""Episodes per call of the runner, which keeps their trajectories in memory until the last ends."""

LoadActors = Callable[[], AbstractContextManager[EpisodeActorFactory]]
"""Loads a policy; called only if there are episodes left to play."""


@dataclass(slots=True)
class StoredEpisodes:
    """The episodes of an evaluation that a file contains."""

    episodes: dict[tuple[str, int], EpisodeFigures] = field(default_factory=dict)
    """By task and seed; a lost episode that was played again counts once, as not lost."""
    broken: list[BrokenLine] = field(default_factory=list)

    def add(self, trajectory: Trajectory) -> None:
        """Add an episode."""
        figures = figures_of(trajectory)
        key = figures.task, figures.seed
        if key not in self.episodes or not self.episodes[key].counts:
            self.episodes[key] = figures

    def finished(self, start: EpisodeSpec) -> bool:
        """Whether the episode was played and not lost."""
        found = self.episodes.get((start.task, start.seed))
        return found is not None and found.counts


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
    store: RunStore,
    plan: EvalPlan,
    rollout_runner: RolloutRunner,
    specs: Mapping[str, PolicySpec],
    console: Console,
) -> dict[str, list[EpisodeFigures]]:
    """Label -> episodes. Policies play one after another, so only one model is in memory."""
    env_instruction = rollout_runner.card.instruction
    starts = starts_of(rollout_runner.tasks, plan.tasks, plan.samples, plan.seed, plan.split)
    return {
        policy.label: play_rest(
            store,
            policy.file,
            rollout_runner,
            partial(
                specs[policy.label].actors,
                env_instruction,
                rollout_runner.run,
                rollout_runner.card.tools,
            ),
            starts,
            horizon=plan.horizon,
            instruction=plan.policy.system_prompt(env_instruction),
            console=console,
            label=policy.label,
        )
        for policy in plan.policies
    }


def play_rest(
    store: RunStore,
    file: str,
    rollout_runner: RolloutRunner,
    load_actors: LoadActors,
    starts: Sequence[EpisodeSpec],
    *,
    horizon: int,
    instruction: str,
    console: Console,
    label: str,
) -> list[EpisodeFigures]:
    """The figures of every start: play the missing episodes and store them.

    An episode is stored when it ends; if the process is killed, only running episodes are lost.
    Lost episodes are played again.
    """
    stored = read_stored(store, file)
    left = [start for start in starts if not stored.finished(start)]
    _show_stored(console, label, stored, len(starts) - len(left), len(starts))
    if left:
        with load_actors() as new_actor, progress_bar(console) as progress:
            live = live_status(rollout_runner, progress)
            bar = progress.add_task(
                escape(one_line(label, 40)), total=len(starts), status=live,
                completed=len(starts) - len(left),
            )  # fmt: skip

            def keep(trajectory: Trajectory) -> None:
                store.append_trajectories(file, [trajectory])
                stored.add(trajectory)
                progress.advance(bar)

            for first in range(0, len(left), _CHUNK):
                rollout_runner.collect(
                    new_actor,
                    left[first : first + _CHUNK],
                    horizon,
                    instruction=instruction,
                    on_episode=keep,
                )
            progress.update(bar, status="")
    return [stored.episodes[start.task, start.seed] for start in starts]


def read_stored(store: RunStore, file: str) -> StoredEpisodes:
    """The episodes of `trajectories/FILE.jsonl`; an incomplete line is not an episode."""
    stored = StoredEpisodes()
    for _, row in each_line(store.path / "trajectories" / f"{file}.jsonl", Trajectory):
        if isinstance(row, BrokenLine):
            stored.broken.append(row)
        else:
            stored.add(row)
    return stored


def _show_stored(
    console: Console, label: str, stored: StoredEpisodes, found: int, requested: int
) -> None:
    for line in stored.broken:
        text = f"{line.path}, line {line.line} cannot be read ({line.reason}) and is ignored."
        console.print(Text(one_line(text), "yellow"), soft_wrap=True)
    if found or stored.broken:
        now = f"; {requested - found} are played now" if found < requested else ""
        text = f"{one_line(label)}: {found} of {requested} episodes are stored already{now}."
        console.print(Text(text), soft_wrap=True)
