"""Concludes an evaluation: its reports and comparisons, shown and written to its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from agentgym_env.errors import ConfigError
from agentgym_env.printable import one_line
from agentgym_env.run_store import RunStore
from agentgym_train.evaluation.charts import NO_CHART, bar_chart
from agentgym_train.evaluation.plan import EvalPlan, check_baseline
from agentgym_train.evaluation.report import (
    EpisodeFigures,
    EvalReport,
    Versus,
    compare,
    report_of,
    warn_of_cuts,
    why_none_counts,
)
from agentgym_train.evaluation.statistics import holm
from agentgym_train.evaluation.tables import (
    Grid,
    as_csv,
    category_grid,
    paper_grid,
    policy_grid,
    versus_grid,
)

EpisodesOf = Mapping[str, Sequence[EpisodeFigures]]
"""Label of a policy -> its episodes."""

_COMPARED = ("success", "score")


def without_lost(played: EpisodesOf) -> tuple[EpisodesOf, dict[str, str]]:
    """(the episodes of the policies that have a result, the reasons of those that have none).

    Raises `ConfigError` if none has one.
    """
    lost = {label: why for label, episodes in played.items() if (why := why_none_counts(episodes))}
    if len(lost) == len(played):
        raise ConfigError(next(iter(lost.values()), "nothing was played"))
    return {label: episodes for label, episodes in played.items() if label not in lost}, lost


def reports_of(plan: EvalPlan, played: EpisodesOf) -> dict[str, EvalReport]:
    """One report per policy."""
    return {
        label: report_of(
            episodes,
            env=plan.env,
            split=plan.split,
            horizon=plan.horizon,
            samples=plan.samples,
            seed=plan.seed,
        )
        for label, episodes in played.items()
    }


def comparisons_of(plan: EvalPlan, played: EpisodesOf, baseline: str | None) -> list[Versus]:
    """Compare every other policy with `baseline`, by default the first, by success and by score.

    Raises `ConfigError` for an unknown baseline.
    """
    check_baseline(list(played), baseline)
    against = baseline or next(iter(played))
    others = [label for label in played if label != against]
    found: list[Versus] = []
    for figure in _COMPARED:
        each = [compare(played[o], played[against], plan.seed, figure) for o in others]
        corrected = holm([comparison.p for comparison in each])
        found += [
            Versus(*parts) for parts in zip(
                others, [against] * len(others), [figure] * len(others), each, corrected,
                strict=True,
            )
        ]  # fmt: skip
    return found


def as_json(
    plan: EvalPlan, reports: Mapping[str, EvalReport], comparisons: Sequence[Versus]
) -> str:
    """The reports, the comparisons, and the settings of the evaluation."""
    settings = {name: value for name, value in plan.as_dict().items() if name != "tasks"}
    whole: dict[str, Any] = {
        "evaluation": settings,
        "reports": {label: report.as_dict() for label, report in reports.items()},
        "comparisons": [comparison.as_dict() for comparison in comparisons],
    }
    return json.dumps(whole, indent=2) + "\n"


def grids_of(reports: dict[str, EvalReport], comparisons: Sequence[Versus]) -> list[Grid]:
    """The tables of an evaluation."""
    by_category = category_grid(reports, "By category")
    return [
        policy_grid(reports),
        *([by_category] if by_category.rows else []),
        *([versus_grid(comparisons)] if comparisons else []),
    ]


def conclude(
    store: RunStore,
    plan: EvalPlan,
    reports: dict[str, EvalReport],
    comparisons: Sequence[Versus],
    console: Console,
    json_path: Path | None = None,
) -> None:
    """Write the files, and show the tables."""
    grids = grids_of(reports, comparisons)
    for grid in grids:
        console.print(grid.as_table())
    for label, report in reports.items():
        if report.lost:
            console.print(Text(f"{one_line(label)}: {_lost(report)}", "yellow"), soft_wrap=True)
        if warning := warn_of_cuts(report.cut_turns, plan.policy.turn_max_tokens):
            console.print(Text(f"{one_line(label)}: {warning}", "yellow"), soft_wrap=True)
        if report.usage:
            console.print(Text(f"{one_line(label)}: used {_used(report)}"), soft_wrap=True)
    paper = paper_grid(plan.env)
    pages = [grid.as_markdown() for grid in [*grids, *([paper] if paper else [])]]
    text = as_json(plan, reports, comparisons)
    for name, content in (
        ("report.json", text),
        ("report.csv", as_csv(reports)),
        ("report.md", "\n".join(pages)),
    ):
        (store.path / name).write_text(content, encoding="utf-8")
    charts = find_spec("matplotlib") is not None
    if charts:
        bar_chart(reports, store.path / "report.png")
    if json_path is not None:
        json_path.write_text(text, encoding="utf-8")
    chart = ", .png" if charts else NO_CHART
    console.print(
        f"Figures: {store.path}/report.json, .csv, .md{chart}   "
        f"Episodes: {store.path}/trajectories",
        soft_wrap=True, markup=False, highlight=False,
    )  # fmt: skip


def _lost(report: EvalReport) -> str:
    return f"{report.lost} episodes were lost and are excluded; the same command plays them again."


def _used(report: EvalReport) -> str:
    return ", ".join(f"{value:,} {name}" for name, value in report.usage.items())
