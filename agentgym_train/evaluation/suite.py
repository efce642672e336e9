"""A suite: several evaluations, which a YAML file lists, with one table, one file and one chart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from agentgym_env.errors import (
    BadRequest,
    ConfigError,
    EnvironmentLost,
    MissingExtra,
    ServerStartFailed,
    UnknownEnvironment,
    UnknownSplit,
)
from agentgym_env.printable import one_line
from agentgym_env.registry import full_id
from agentgym_env.run_lock import folder_lock, is_unused
from agentgym_train.config.checks import Settings, converted_value
from agentgym_train.config.read import read_values
from agentgym_train.evaluation.charts import bar_chart
from agentgym_train.evaluation.plan import (
    Candidates,
    EvalPlan,
    Evaluation,
    digest_folder,
    eval_store,
    evaluation_key,
    label_file_name,
)
from agentgym_train.evaluation.play import play_policies
from agentgym_train.evaluation.report import (
    EpisodeFigures,
    EvalReport,
    comparisons_of,
    reports_of,
    without_lost,
)
from agentgym_train.evaluation.statistics import Bar
from agentgym_train.evaluation.tables import Grid, conclude, tasks_counted, with_interval


class _NotRun(ConfigError):
    """No policy has a result in an evaluation."""


_CANNOT_RUN: Final = (MissingExtra, ServerStartFailed, EnvironmentLost)
"""Errors of an environment that cannot be used here, whatever the settings."""

_WRONG: Final = (BadRequest, UnknownEnvironment, UnknownSplit)
"""Errors of wrong settings."""

_NO_EXPERT: Final = "there is no expert for these tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite(Settings):
    """What a suite's file contains."""

    evaluations: list[Evaluation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Remarks below the table that are about the whole suite."""


@dataclass(slots=True)
class Result:
    """What one evaluation of a suite found."""

    entry: Evaluation
    not_run: str = ""
    """Why it was not run; empty if it was."""
    split: str = ""
    tasks: int = 0
    notes: Sequence[str] = ()
    reports: Mapping[str, EvalReport] = field(default_factory=dict)
    unsolved: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Label -> the tasks that it never solved."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Label -> why that policy was not run here."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        own = asdict(self)
        entry = own.pop("entry")
        named = {"not_run": self.not_run or None, "split": self.split or self.entry.split}
        return {**entry, **own, **named}


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePlan:
    """A suite with the policies that play it."""

    file: str
    suite: Suite
    labels: Sequence[str]
    """The labels of the policies."""
    policies: Mapping[str, Candidates]
    """Key of an evaluation -> its policies."""
    seed: int = 0
    concurrency: int = 256

    def __post_init__(self) -> None:
        published = {name for entry in self.suite.evaluations for name in entry.published}
        for label in self.labels:
            if label in published:
                raise ConfigError(
                    f"{label} is also the name of a published result in {self.file}; give the "
                    "policy another label: --policy LABEL=POLICY"
                )
            reasons = [found.missing.get(label) for found in self.policies.values()]
            if all(reasons):
                raise ConfigError(f"{label} is missing in every evaluation; {reasons[0]}")

    def folder(self) -> Path:
        """The default folder; other settings have another one."""
        values: dict[str, Any] = {"seed": self.seed}
        for entry in self.suite.evaluations:
            found = self.policies[entry.key]
            values[entry.key] = asdict(replace(entry, published={}, notes=[]))
            values[entry.key]["policies"] = [policy.as_dict() for policy in found.found]
            values[entry.key]["policy"] = asdict(found.settings)
        return digest_folder(f"suite-{label_file_name(Path(self.file).stem)}", values)


def read_suite(file: str) -> Suite:
    """The suite in a file, or in `starter:NAME`; raises `ConfigError` for one that is invalid."""
    if file == "paper" and not Path(file).exists():
        raise ConfigError("--suite paper is now --suite starter:suites/paper.yaml")
    values = read_values(Path(file), list_key="evaluations")
    try:
        suite: Suite = converted_value(values, Suite, "suite")
        if not suite.evaluations:
            raise ConfigError("evaluations is empty; write `{name: NAME, env: ID}` for each")
        keys: dict[str, int] = {}
        for number, entry in enumerate(suite.evaluations):
            place = f"evaluations[{number}]"
            if not entry.name.strip() or not entry.env:
                raise ConfigError(
                    f"{place} needs a name and an env; write `{{name: NAME, env: ID}}`"
                )
            if (other := keys.setdefault(entry.key, number)) != number:
                raise ConfigError(
                    f"{place} is named {entry.name!r} like evaluations[{other}] (names are "
                    "folders, in lower case)"
                )
            try:
                _ = entry.servers or full_id(entry.env)
            except UnknownEnvironment as error:
                raise ConfigError(f"{place} ({entry.name}): {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return suite


def with_options(suite: Suite, env_kwargs: Mapping[str, Any], **options: int | None) -> Suite:
    """The suite with the values of a command line, which the notes of the evaluations state.

    `env_kwargs` are by name of the evaluation. Raises `ConfigError` for another name.
    """
    entries = list(suite.evaluations)
    by_key = {evaluation_key(str(name)): kwargs for name, kwargs in env_kwargs.items()}
    keys = [entry.key for entry in entries]
    if not all(key in keys and isinstance(kwargs, Mapping) for key, kwargs in by_key.items()):
        raise ConfigError(
            f"with --suite, --env-kwargs has an object for each evaluation ({', '.join(keys)}), "
            f'as in \'{{"{keys[0]}": {{"legacy": true}}}}\'; got {json.dumps(env_kwargs)}'
        )
    for number, entry in enumerate(entries):
        values: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
        if entry.key in by_key:
            values["env_kwargs"] = {**entry.env_kwargs, **by_key[entry.key]}
        changed = {k: v for k, v in values.items() if v != getattr(entry, k)}
        notes = []
        for name, value in changed.items():
            own = f" (otherwise {json.dumps(before)})" if (before := getattr(entry, name)) else ""
            notes.append(f"--{name.replace('_', '-')} {json.dumps(value)}{own}")
        entries[number] = replace(entry, **changed, notes=[*entry.notes, *notes])
    return replace(suite, evaluations=entries)


def run_suite(
    plan: SuitePlan, path: Path, console: Console, *, fresh: bool = False
) -> list[Result]:
    """Play all evaluations, write the results to `path`, and show one table.

    One whose environment lacks what it needs here is reported with the reason. Raises
    `ConfigError` before anything is played for wrong settings, if nothing can be run, or if
    `path` contains anything but this suite; and `FolderInUse`.
    """
    entries = plan.suite.evaluations
    plans = {entry.key: _planned(plan, entry) for entry in entries}
    first = entries[0]
    if all(isinstance(found, str) for found in plans.values()):
        raise ConfigError(f"no evaluation can be run; {first.name}: {plans[first.key]}")
    with folder_lock(path, "--out"):
        if not is_unused(path) and not any((path / key).is_dir() for key in plans):
            raise ConfigError(f"{path} contains no suite; choose another folder with --out")
        for entry in entries:
            found = plans[entry.key]
            if not fresh and isinstance(found, EvalPlan):
                found.check_same(path / entry.key)
            for label, reason in plan.policies[entry.key].missing.items():
                _warn(console, f"{entry.name} is played without {label}: {reason}")
        results = []
        for entry in entries:
            console.print(Text(one_line(entry.name), "bold"))
            found = plans[entry.key]
            try:
                if isinstance(found, str):
                    raise _NotRun(found)
                result = _play(plan, entry, found, path / entry.key, console, fresh=fresh)
            except (*_CANNOT_RUN, _NotRun) as error:
                result = Result(entry, not_run=str(error), notes=entry.notes)
                _warn(console, f"not run: {result.not_run}")
            results.append(result)
        if all(result.not_run for result in results):
            raise ConfigError(f"no evaluation was run; {first.name}: {results[0].not_run}")
        _conclude(plan, results, path, console)
    return results


def suite_grid(plan: SuitePlan, results: Sequence[Result]) -> tuple[Grid, list[str]]:
    """(a row per policy and per published result, a column per evaluation; the notes below)."""
    numbers: dict[str, int] = {}

    def named(result: Result) -> str:
        texts = [f"not run: {result.not_run}"] if result.not_run else []
        texts += [*result.notes, *(f"{label}: {why}" for label, why in result.skipped.items())]
        marks = [numbers.setdefault(text, len(numbers) + 1) for text in texts]
        return " ".join([result.entry.name, *(f"[{mark}]" for mark in marks)])

    header = ["", *map(named, results)]
    played = [result if not result.not_run else None for result in results]
    rows = [
        ["tasks", *(f"{r.tasks} of {r.split}" if r else "" for r in played)],
        ["maximum turns", *(str(r.entry.horizon) if r else "" for r in played)],
        *([label, *(_cell(result, label) for result in results)] for label in plan.labels),
    ]
    for name in _published(results):
        values = [result.entry.published.get(name) for result in results]
        rows.append([name, *("" if value is None else f"{value:.3f}" for value in values)])
    notes = [f"[{number}] {text}" for text, number in numbers.items()]
    title = f"{plan.file}: success (95 % interval), mean turns"
    return Grid(title, header, rows), [*notes, *plan.suite.notes]


def _planned(plan: SuitePlan, entry: Evaluation) -> EvalPlan | str:
    """What an evaluation plays, or why it cannot be run here.

    Raises `ConfigError` for wrong settings.
    """
    given = plan.policies[entry.key]
    try:
        with entry.runner(plan.concurrency) as runner:
            has_expert = runner.card.has_expert
            policies = [p for p in given.found if p.spec.name.kind != "expert" or has_expert]
            found = entry.plan(runner, given.settings, policies, plan.seed)
    except _CANNOT_RUN as error:
        return str(error)
    except _WRONG as error:
        raise ConfigError(f"{plan.file}, evaluation {entry.name}: {error}") from error
    return found if policies else next(iter(given.missing.values()), _NO_EXPERT)


def _play(
    plan: SuitePlan,
    entry: Evaluation,
    found: EvalPlan,
    path: Path,
    console: Console,
    *,
    fresh: bool,
) -> Result:
    missing, played = plan.policies[entry.key].missing, {p.label for p in found.policies}
    skipped = {label: missing.get(label, _NO_EXPERT) for label in plan.labels}
    with (
        entry.runner(plan.concurrency) as runner,
        eval_store(path, found, fresh=fresh) as store,
    ):
        episodes = play_policies(store, found, runner, console)
        # A policy that lost every episode does not take the others' results away.
        try:
            kept, lost = without_lost(episodes)
        except ConfigError as error:
            raise _NotRun(str(error)) from error
        reports, quiet = reports_of(found, kept), Console(quiet=True)
        conclude(path, found, reports, comparisons_of(found, kept, None), quiet)
    notes = list(entry.notes)
    if isinstance(entry.split, list) and entry.split[0] != found.split:
        notes.append(
            f"split {found.split}, as there is no split {entry.split[0]} here: not comparable "
            "with published results"
        )
    return Result(
        entry, split=found.split, tasks=len(found.tasks), notes=notes, reports=reports,
        skipped={**{n: why for n, why in skipped.items() if n not in played}, **lost},
        unsolved={label: _unsolved(figures) for label, figures in kept.items()},
    )  # fmt: skip


def _unsolved(episodes: Sequence[EpisodeFigures]) -> list[str]:
    solved = {episode.task for episode in episodes if episode.success}
    return list(dict.fromkeys(e.task for e in episodes if e.counts and e.task not in solved))


def _conclude(plan: SuitePlan, results: Sequence[Result], path: Path, console: Console) -> None:
    """Write the files, and show the table and its notes."""
    grid, notes = suite_grid(plan, results)
    console.print(grid.as_table())
    for note in notes:
        console.print(Text(_joined(note)), soft_wrap=True)
    whole = {
        "suite": plan.file, "seed": plan.seed, "notes": plan.suite.notes,
        "evaluations": {result.entry.name: result.as_dict() for result in results},
    }  # fmt: skip
    listed = "\n".join(f"- {_joined(note)}" for note in notes)
    (path / "suite.json").write_text(
        json.dumps(whole, indent=2, default=str) + "\n", encoding="utf-8"
    )
    (path / "suite.md").write_text(f"{grid.as_markdown()}\n{listed}\n", encoding="utf-8")
    rows: dict[str, list[Bar | None]] = {}
    for label in plan.labels:
        found = [result.reports.get(label) for result in results]
        rows[label] = [(r.success, r.success_interval) if r else None for r in found]
    published = _published(results)
    for name in published:
        values = [result.entry.published.get(name) for result in results]
        rows[name] = [None if value is None else (value, None) for value in values]
    groups = [_described(result) for result in results]
    chart = bar_chart(rows, groups, plan.file, path / "suite.png", published)
    console.print(
        f"Figures: {path}/suite.json, .md{chart}", soft_wrap=True, markup=False, highlight=False
    )


def _published(results: Sequence[Result]) -> list[str]:
    """The names of all published results, each once."""
    return list(dict.fromkeys(name for result in results for name in result.entry.published))


def _cell(result: Result, label: str) -> str:
    report = result.reports.get(label)
    if report is None:
        return "not run"
    lost = f", {report.lost} lost" if report.lost else ""
    return f"{with_interval(report.success, report.success_interval)}, {report.turns:.1f}{lost}"


def _described(result: Result) -> str:
    """An evaluation beside its bars."""
    facts = f"{tasks_counted(result.tasks)}, {result.entry.horizon} turns"
    return f"{result.entry.name} ({'not run' if result.not_run else facts})"


def _warn(console: Console, text: str) -> None:
    console.print(Text(_joined(text), "yellow"), soft_wrap=True)


def _joined(text: str) -> str:
    """The lines of a text as one."""
    return one_line(" ".join(text.split()))
