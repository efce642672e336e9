"""The suite `paper`: policies on the worlds of arXiv:2509.08755, beside the paper's results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from agentgym_env.errors import ConfigError, MissingExtra, ServerStartFailed, UnknownEnvironment
from agentgym_env.printable import one_line
from agentgym_env.run_lock import check_unlocked, folder_lock, is_unused
from agentgym_env.run_store import RunStore, move_aside
from agentgym_env.text_env import TaskSet
from agentgym_train.evaluation.charts import NO_CHART, Bar, grouped_bars
from agentgym_train.evaluation.conclusion import comparisons_of, conclude, reports_of, without_lost
from agentgym_train.evaluation.paper import PAPER_NOTE, PAPER_ROWS, SUITES, WORLDS, SuiteWorld
from agentgym_train.evaluation.plan import FOLDER, EvalPlan, eval_store, first_tasks
from agentgym_train.evaluation.play import play_policies
from agentgym_train.evaluation.policies import Policies
from agentgym_train.evaluation.report import EpisodeFigures, EvalReport
from agentgym_train.evaluation.tables import Grid, tasks_counted, with_interval
from agentgym_train.rollout.runner import RolloutRunner

_SPLIT: Final = "paper"
_CLEAN: Final = "paper_clean"
_TEMPERATURE: Final = 1.0


class WorldNotRun(ConfigError):
    """A world cannot be evaluated here, whatever the settings."""


_CANNOT_RUN: Final = (MissingExtra, ServerStartFailed, UnknownEnvironment, WorldNotRun)


@dataclass(slots=True)
class WorldResult:
    """What the suite found in one world."""

    world: SuiteWorld
    not_run: str = ""
    """Why the world was not run; empty if it was."""
    horizon: int = 0
    split: str = ""
    tasks: int = 0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    differences: Sequence[str] = ()
    reports: Mapping[str, EvalReport] = field(default_factory=dict)
    clean: Mapping[str, float | None] = field(default_factory=dict)
    """Label -> success on the tasks that are not in the paper's training list, if there are."""
    clean_tasks: int = 0
    """How many tasks these are."""
    unsolved: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Label -> the tasks that it never solved."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Label -> why that policy was not run here."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "env": self.world.env_id, "not_run": self.not_run or None, "split": self.split,
            "tasks": self.tasks, "horizon": self.horizon, "env_kwargs": dict(self.env_kwargs),
            "differences": list(self.differences), "skipped": dict(self.skipped),
            "reports": {label: report.as_dict() for label, report in self.reports.items()},
            "success_clean": dict(self.clean), "tasks_clean": self.clean_tasks,
            "unsolved": {label: list(tasks) for label, tasks in self.unsolved.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePlan:
    """The settings of a suite."""

    policies: Mapping[str, Policies]
    """World -> its policies, with the same labels in every world."""
    env_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """World (`textcraft`, `search`, ...) -> its settings."""
    horizon: int | None = None
    """Maximum turns per episode in every world; None uses the paper's."""
    samples: int = 1
    seed: int = 0
    limit: int | None = None
    """Only the first tasks of each world."""
    per_category: int | None = None
    """Only the first tasks of each category of a world."""
    concurrency: int = 256

    def __post_init__(self) -> None:
        unknown = sorted(set(self.env_kwargs) - {world.key for world in WORLDS})
        if unknown or not all(isinstance(kwargs, Mapping) for kwargs in self.env_kwargs.values()):
            names = ", ".join(world.key for world in WORLDS)
            raise ConfigError(
                f"with --suite, --env-kwargs has an object for each world ({names}), as in "
                f'\'{{"textcraft": {{"legacy": true}}}}\'; got {json.dumps(self.env_kwargs)}'
            )
        for label in self.labels:
            reasons = [found.missing.get(label) for found in self.policies.values()]
            if all(reasons):
                raise ConfigError(f"{label} is missing in every world; {reasons[0]}")

    @property
    def labels(self) -> Sequence[str]:
        """The labels of the policies."""
        return next(iter(self.policies.values())).labels

    def as_dict(self) -> dict[str, Any]:
        """Everything that the results depend on, as JSON returns it."""
        policies = {
            world: [asdict(found.settings), [asdict(plan) for plan in found.plans]]
            for world, found in self.policies.items()
        }
        values = {
            "policies": policies, "env_kwargs": self.env_kwargs, "horizon": self.horizon,
            "samples": self.samples, "seed": self.seed, "limit": self.limit,
            "per_category": self.per_category,
        }  # fmt: skip
        plain: dict[str, Any] = json.loads(json.dumps(values, sort_keys=True, default=str))
        return plain

    def folder(self) -> Path:
        """The default folder; other settings have another one."""
        whole = json.dumps(self.as_dict(), sort_keys=True).encode()
        return FOLDER / f"suite-paper-{hashlib.blake2b(whole, digest_size=5).hexdigest()}"


def world_ids() -> dict[str, str]:
    """World -> the id of its environment, of the worlds of the suite."""
    return {world.key: world.env_id for world in WORLDS}


def run_suite(
    plan: SuitePlan, path: Path, console: Console, *, fresh: bool = False
) -> list[WorldResult]:
    """Play all worlds, write the results to `path`, and show one table.

    A world that lacks what it needs here is reported with the reason. Raises `BadRequest` or
    `ConfigError` for wrong settings, `ConfigError` if no world can be run or `path` contains
    anything but a suite with these settings, and `FolderInUse`.
    """
    for world in WORLDS:
        # A world that cannot run here is reported when its turn comes.
        with suppress(*_CANNOT_RUN):
            _check_settings(world, plan.env_kwargs.get(world.key, {}))
    with folder_lock(path, "--out"):
        _begin(plan, path, fresh=fresh)
        return _play_worlds(plan, path, console)


def suite_tasks(tasks: TaskSet, world: SuiteWorld) -> tuple[Sequence[str], str]:
    """(the paper's tasks, or those that stand in for them; the name of their split).

    Raises `WorldNotRun` if there are neither.
    """
    if _SPLIT in tasks.selections:
        return tasks.split(_SPLIT), _SPLIT
    split = tasks.split("test") if "test" in tasks.splits else ()
    chosen: list[str] = []
    for category, number in world.quotas.items():
        own = [task for task in split if category in (None, tasks.category(task))]
        if len(own) < number:
            raise WorldNotRun(
                f"its tasks lack some of the paper's, and {len(own)} of {number} others "
                f"{f'of {category} ' if category else ''}could stand in for them"
            )
        # Spread over the list, whose neighbours are alike.
        chosen += [own[place * len(own) // number] for place in range(number)]
    if not chosen:
        raise WorldNotRun("its tasks lack some of the paper's")
    return chosen, "test"


def differences(
    plan: SuitePlan, world: SuiteWorld, split: str, kwargs: Mapping[str, Any]
) -> list[str]:
    """What differs from the paper's evaluation of a world."""
    found = list(world.always)
    if world.legacy and not kwargs.get("legacy"):
        found.append(world.legacy)
    if split != _SPLIT:
        found.append(world.stand_in)
    elif world.stand_in:
        found.append("the sites, retriever or judge that you provide")
    if plan.horizon not in (None, world.horizon):
        found.append(f"{plan.horizon} turns; in the paper's scripts {world.horizon}")
    if plan.limit is not None:
        found.append(f"only the first {tasks_counted(plan.limit)}")
    if plan.per_category is not None:
        found.append(f"only the first {tasks_counted(plan.per_category)} of each category")
    own = {name: value for name, value in kwargs.items() if name != "legacy"}
    if own:
        found.append(f"env_kwargs {json.dumps(own)}")
    if plan.samples > 1:
        found.append(f"mean of {plan.samples} episodes per task; in the paper 1")
    return [*found, *_differences_of_models(plan.policies[world.key])]


def suite_grid(labels: Sequence[str], results: Sequence[WorldResult]) -> tuple[Grid, list[str]]:
    """(a row per policy and per model of the paper, a column per world; the notes below)."""
    notes: dict[str, int] = {}

    def mark(result: WorldResult) -> str:
        texts = [result.not_run and f"not run: {result.not_run}", *result.differences]
        texts += [f"{label}: {why}" for label, why in result.skipped.items()]
        numbers = [notes.setdefault(text, len(notes) + 1) for text in texts if text]
        return " ".join(f"[{number}]" for number in numbers)

    header = ["", *(f"{result.world.name} {mark(result)}".strip() for result in results)]
    rows = [[label, *(_cell(result, label) for result in results)] for label in labels]
    facts = [
        ["tasks", *(_fact(result, f"{result.tasks} of {result.split}") for result in results)],
        ["maximum turns", *(_fact(result, str(result.horizon)) for result in results)],
    ]
    clean = [[f"{name}, {_CLEAN}", *(_clean(r, name) for r in results)] for name in labels]
    clean = [row for row in clean if set(row[1:]) != {""}]
    published = [
        [f"{name} (paper)", *(f"{row[result.world.name]:.3f}" for result in results)]
        for name, row in PAPER_ROWS.items()
    ]
    listed = [f"[{number}] {text}" for text, number in notes.items()]
    title = "Suite paper: success (95 % interval), mean turns"
    grid = Grid(title, header, [*facts, *rows, *clean, *published])
    return grid, [*listed, PAPER_NOTE]


def draw_suite(labels: Sequence[str], results: Sequence[WorldResult], path: Path) -> None:
    """Success by world, with a bar for each policy and for each model of the paper, as PNG."""
    ours = {
        label: [
            (report.success, report.success_interval) if report else None
            for report in (result.reports.get(label) for result in results)
        ]
        for label in labels
    }
    names = [f"{result.world.name}\n{_described(result)}" for result in results]
    grouped_bars(ours, published_bars([result.world.name for result in results]), names, path)


def published_bars(worlds: Sequence[str]) -> dict[str, list[Bar | None]]:
    """The paper's success in these worlds, by model."""
    return {
        f"{name} (paper)": [(row[world], None) for world in worlds]
        for name, row in PAPER_ROWS.items()
    }


def chart_group(tasks: int, horizon: int, *, own: bool) -> str:
    """What a chart says of a world; `own`: these are not the paper's tasks."""
    counted = tasks_counted(tasks)
    if own:
        return f"{counted}, {horizon} turns\nour tasks: do not compare\nwith the paper's bars"
    return f"{counted}, {horizon} turns"


def _play_worlds(plan: SuitePlan, path: Path, console: Console) -> list[WorldResult]:
    for world in WORLDS:
        for label, reason in plan.policies[world.key].missing.items():
            said = f"{world.name} is played without {label}: {_joined(reason)}"
            console.print(Text(said, "yellow"), soft_wrap=True)
    results = []
    for world in WORLDS:
        console.print(Text(f"{world.name}", "bold"))
        try:
            result = _play_world(plan, world, path / world.key, console)
        except _CANNOT_RUN as error:
            result = WorldResult(world, not_run=str(error))
            console.print(Text(f"not run: {_joined(result.not_run)}", "yellow"), soft_wrap=True)
        results.append(result)
    if all(result.not_run for result in results):
        if not any((path / world.key).exists() for world in WORLDS):
            (path / "plan.json").unlink()
        raise ConfigError(f"no world can be run; {results[0].world.name}: {results[0].not_run}")
    _conclude(plan, results, path, console)
    return results


def _check_settings(world: SuiteWorld, kwargs: Mapping[str, Any]) -> None:
    """Raise `BadRequest` if a world rejects `kwargs` or lacks paper tasks with them."""
    if not kwargs:
        return
    with RolloutRunner(world.env_id, env_kwargs=kwargs, concurrency=1) as runner:
        own_tasks = "questions" in kwargs or not world.quotas
        if own_tasks and _SPLIT not in runner.tasks.selections:
            raise ConfigError(
                f"{world.name} lacks some of the paper's tasks with {json.dumps(dict(kwargs))}"
            )


def _joined(text: str) -> str:
    """The lines of a text as one."""
    return one_line(" ".join(text.split()))


def _begin(plan: SuitePlan, path: Path, *, fresh: bool) -> None:
    """Write the plan; `fresh` moves the worlds of an earlier one aside.

    Raises `ConfigError` if the folder has another plan, or something else.
    """
    store, now = RunStore(path), plan.as_dict()
    if not is_unused(path) and not (path / "plan.json").exists():
        raise ConfigError(f"{path} contains no suite; choose another folder with --out")
    if fresh:
        for folder in (path / world.key for world in WORLDS):
            if not is_unused(folder):
                check_unlocked(folder, "--out")
                move_aside(folder)
    before = None if fresh else store.read_json("plan.json")
    other = [name for name in now if before is not None and before.get(name) != now[name]]
    if other:
        raise ConfigError(
            f"{path} contains another suite, with other {', '.join(other)} (see "
            f"{path / 'plan.json'}). Choose another folder with --out, or move its worlds aside "
            "with --fresh"
        )
    store.write_json("plan.json", now)


def _play_world(plan: SuitePlan, world: SuiteWorld, path: Path, console: Console) -> WorldResult:
    kwargs, given = plan.env_kwargs.get(world.key, {}), plan.policies[world.key]
    with RolloutRunner(world.env_id, env_kwargs=kwargs, concurrency=plan.concurrency) as runner:
        ids, split = suite_tasks(runner.tasks, world)
        ids = list(first_tasks(runner.tasks, ids, plan.limit, plan.per_category))
        no_expert = {
            policy.label: "there is no expert for these tasks"
            for policy in given.plans
            if policy.policy == "expert" and not runner.card.has_expert
        }
        skipped = {**given.missing, **no_expert}
        policies = [policy for policy in given.plans if policy.label not in skipped]
        if not policies:
            raise WorldNotRun(next(iter(skipped.values())))
        horizon = plan.horizon or world.horizon
        policy = given.settings
        if policy.instruction is None:
            policy = replace(policy, instruction=runner.card.instruction)
        found = EvalPlan(
            env=runner.card.env, env_kwargs=kwargs, env_version=runner.card.version, split=split,
            tasks=ids, samples=plan.samples, horizon=horizon, seed=plan.seed, policy=policy,
            policies=policies,
        )  # fmt: skip
        with eval_store(path, found) as store:
            played = play_policies(store, found, runner, given.specs, console)
            # A policy that lost every episode does not take the others' results away.
            try:
                kept, lost = without_lost(played)
            except ConfigError as error:
                raise WorldNotRun(str(error)) from error
            skipped |= lost
            reports = reports_of(found, kept)
            quiet = Console(quiet=True)
            conclude(store, found, reports, comparisons_of(found, kept, None), quiet)
        clean = set(ids).intersection(
            runner.tasks.selections.get(_CLEAN, ()) if split == _SPLIT else ()
        )
    return WorldResult(
        world, horizon=horizon, split=split, tasks=len(ids), env_kwargs=kwargs, reports=reports,
        differences=differences(plan, world, split, kwargs), skipped=skipped,
        clean={label: _success(episodes, clean) for label, episodes in kept.items() if clean},
        clean_tasks=len(clean),
        unsolved={label: _unsolved(episodes) for label, episodes in kept.items()},
    )  # fmt: skip


def _differences_of_models(policies: Policies) -> list[str]:
    """Those in how models are asked, if there is one."""
    settings, found = policies.settings, []
    if not any(spec.name.samples_tokens for spec in policies.specs.values()):
        return []
    if settings.temperature != _TEMPERATURE:
        found.append(f"temperature {settings.temperature:g}; in the paper 1")
    own = settings.instruction is not None
    found.append("another instruction" if own else "the instruction is in our words")
    limits = f"{settings.turn_max_tokens} tokens per turn and {settings.max_tokens} per episode"
    found.append(f"at most {limits}")
    if settings.chat_template_kwargs:
        written = json.dumps(dict(settings.chat_template_kwargs))
        found.append(f"arguments of the chat template: {written}")
    if settings.action_format != "react":
        found.append(f"action format {settings.action_format}; in the paper react")
    if settings.agent != "plain":
        found.append(f"agent {settings.agent}; in the paper the whole conversation is shown")
    return found


def _success(episodes: Sequence[EpisodeFigures], tasks: set[str]) -> float | None:
    counted = [float(e.success) for e in episodes if e.counts and e.task in tasks]
    return sum(counted) / len(counted) if counted else None


def _unsolved(episodes: Sequence[EpisodeFigures]) -> list[str]:
    solved = {episode.task for episode in episodes if episode.success}
    return list(dict.fromkeys(e.task for e in episodes if e.counts and e.task not in solved))


def _conclude(
    plan: SuitePlan, results: Sequence[WorldResult], path: Path, console: Console
) -> None:
    """Write the files, and show the table and its notes."""
    labels = plan.labels
    grid, notes = suite_grid(labels, results)
    console.print(grid.as_table())
    for note in notes:
        console.print(Text(_joined(note)), soft_wrap=True)
    whole = {
        "suite": SUITES[0], "seed": plan.seed, "samples": plan.samples,
        "worlds": {result.world.name: result.as_dict() for result in results},
        "paper": {name: dict(row) for name, row in PAPER_ROWS.items()},
    }  # fmt: skip
    listed = "\n".join(f"- {_joined(note)}" for note in notes)
    page = f"{grid.as_markdown()}\n{listed}\n"
    (path / "suite.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    (path / "suite.md").write_text(page, encoding="utf-8")
    drawn = find_spec("matplotlib") is not None
    if drawn:
        draw_suite(labels, results, path / "suite.png")
    chart = ", .png" if drawn else NO_CHART
    console.print(
        f"Figures: {path}/suite.json, .md{chart}", soft_wrap=True, markup=False, highlight=False
    )


def _cell(result: WorldResult, label: str) -> str:
    report = result.reports.get(label)
    if report is None:
        return "not run"
    lost = f", {report.lost} lost" if report.lost else ""
    success = with_interval(report.success, report.success_interval)
    return f"{success}, {report.turns:.1f}{lost}"


def _fact(result: WorldResult, text: str) -> str:
    return "" if result.not_run else text


def _clean(result: WorldResult, label: str) -> str:
    success = result.clean.get(label)
    return "" if success is None else f"{success:.2f} of {tasks_counted(result.clean_tasks)}"


def _described(result: WorldResult) -> str:
    """The tasks and turns of a world, under its bars."""
    if result.not_run:
        return "not run"
    return chart_group(result.tasks, result.horizon, own=result.split != _SPLIT)
