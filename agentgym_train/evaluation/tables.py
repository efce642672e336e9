"""Evaluation reports as tables for the terminal, Markdown and CSV, and as the files of a folder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentgym_env.printable import UncutTable, one_line
from agentgym_train.evaluation.charts import bar_chart
from agentgym_train.evaluation.plan import EvalPlan
from agentgym_train.evaluation.report import CategoryReport, EvalReport, Versus, warn_of_cuts
from agentgym_train.evaluation.statistics import Bar, Comparison, Interval

Reports = Mapping[str, EvalReport]

MAX_CATEGORIES: Final = 40
"""With more categories, the chart shows only the total."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of texts; its first column holds names, the others numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    footer: Sequence[str] | None = None
    """A last row, set apart."""

    def as_table(self) -> UncutTable:
        """For a terminal."""
        table = Table(
            title=Text(one_line(self.title)),
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for number, name in enumerate(self.header):
            table.add_column(Text(one_line(name)), justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        if self.footer is not None:
            table.add_section()
            table.add_row(*(Text(one_line(cell), "bold") for cell in self.footer))
        return UncutTable(table)

    def as_markdown(self) -> str:
        """For a page; cells are escaped."""
        rules = ["---"] + ["---:"] * (len(self.header) - 1)
        rows = [*self.rows, *([self.footer] if self.footer is not None else [])]
        lines = [_markdown_row(self.header), f"|{'|'.join(rules)}|", *map(_markdown_row, rows)]
        return f"**{_markdown(self.title)}**\n\n" + "\n".join(lines) + "\n"


def policy_grid(reports: Reports) -> Grid:
    """One row per policy: its results over all tasks, without columns that are all the same."""
    shown = next(iter(reports.values()))
    columns: dict[str, Callable[[EvalReport], str]] = {
        "success": lambda r: with_interval(r.success, r.success_interval)
    }
    if shown.samples > 1:
        k = max(len(report.pass_at_k) for report in reports.values())
        columns[f"pass@{k}"] = lambda r: _pass(r, k)
    if any(report.score != report.success for report in reports.values()):
        columns["score"] = lambda r: f"{r.score:.2f}"
    columns["turns"] = lambda r: f"{r.turns:.1f}"
    if any(report.tokens for report in reports.values()):
        columns["tokens"] = lambda r: f"{r.tokens:,.0f}"
    if any(report.invalid_actions is not None for report in reports.values()):
        columns["invalid"] = lambda r: _share(r.invalid_actions)
    if any(report.cut_turns for report in reports.values()):
        columns["cut"] = lambda r: _share(r.cut_turns)
    columns["episodes"] = lambda r: str(r.episodes)
    if any(report.lost for report in reports.values()):
        columns["lost"] = lambda r: str(r.lost)
    rows = [[label, *(cell(r) for cell in columns.values())] for label, r in reports.items()]
    return Grid(_title(shown), ["", *columns], rows)


def category_grid(reports: Reports, title: str | None = None) -> Grid:
    """One row per category: success and mean turns, two columns per report."""
    shown = list(reports.values())[-1]
    header = ["", "episodes"]
    for name in reports:
        header += [f"success {name}".strip(), "turns"]
    rows = []
    for category, whole in shown.categories.items():
        row = [category, str(whole.episodes)]
        for report in reports.values():
            part = report.categories.get(category)
            row += [f"{part.success:.2f}", f"{part.turns:.1f}"] if part else ["-", "-"]
        rows.append(row)
    total = ["all", str(shown.episodes)]
    for report in reports.values():
        total += [with_interval(report.success, report.success_interval), f"{report.turns:.1f}"]
    rows = [] if list(shown.categories) == ["all"] else rows
    return Grid(title or _title(shown), header, rows, total)


def comparison_grid(reports: Reports, against: Mapping[str, Comparison], trained: str) -> Grid:
    """One row per policy: success, turns, and how far `trained` is above it, task by task."""
    rows = []
    for label, report in reports.items():
        row = [label, with_interval(report.success, report.success_interval)]
        row.append(f"{report.turns:.1f}")
        above = against.get(label)
        row.append("" if above is None else f"{above.effect:+.2f}{_range(above.interval)}")
        rows.append(row)
    shown = reports[trained]
    return Grid(_title(shown), ["", "success (95 %)", "turns", f"{trained}, above it"], rows)


def versus_grid(comparisons: Sequence[Versus]) -> Grid:
    """One row per comparison; those by score only if score and success differ."""
    by_success = [each for each in comparisons if each.figure == "success"]
    by_score = [each for each in comparisons if each.figure == "score"]
    same = [(each.effect, each.p) for each in by_success] == [(v.effect, v.p) for v in by_score]
    shown = by_success if same else comparisons
    columns: dict[str, Callable[[Versus], str]] = {
        "difference (95 %)": lambda v: f"{v.effect:+.3f}{_signed(v.interval)}",
        "p": lambda v: _p(v.p),
    }
    if not same:
        columns = {"of": lambda v: v.figure, **columns}
    if len(by_success) > 1:
        columns["p (Holm)"] = lambda v: _p(v.p_holm)
    columns["better"] = lambda v: str(v.better)
    columns["worse"] = lambda v: str(v.worse)
    counts = {each.tasks for each in shown}
    title = "Paired, task by task"
    if len(counts) == 1:
        title += f", over {counts.pop()} tasks"
    else:
        columns["tasks"] = lambda v: str(v.tasks)
    rows = [[f"{v.policy} - {v.baseline}", *(cell(v) for cell in columns.values())] for v in shown]
    return Grid(title, ["", *columns], rows)


def as_csv(reports: Reports) -> str:
    """All numbers: one line per policy and category; the category of a total is empty."""
    rows = []
    for label, report in reports.items():
        parts = {} if list(report.categories) == ["all"] else report.categories
        for category, part in {"": report, **parts}.items():
            row: dict[str, Any] = {"policy": _no_formula(label), "category": _no_formula(category)}
            for name, value in asdict(part).items():
                if name == "pass_at_k":
                    row |= {f"pass_at_{k}": each for k, each in enumerate(value, 1)}
                elif name.endswith("_interval") and value is not None:
                    figure = name.removesuffix("_interval")
                    row |= {f"{figure}_low": value[0], f"{figure}_high": value[1]}
                elif isinstance(value, int | float):
                    row[name] = value
            rows.append(row)
    out = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(out, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def evaluation_json(plan: EvalPlan, reports: Reports, comparisons: Sequence[Versus]) -> str:
    """The reports, the comparisons, and the settings of the evaluation."""
    settings = {name: value for name, value in plan.as_dict().items() if name != "tasks"}
    whole: dict[str, Any] = {
        "evaluation": settings,
        "reports": {label: report.as_dict() for label, report in reports.items()},
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }
    return json.dumps(whole, indent=2) + "\n"


def grids_of(reports: Reports, comparisons: Sequence[Versus]) -> list[Grid]:
    """The tables of an evaluation."""
    by_category = category_grid(reports, "By category")
    return [
        policy_grid(reports),
        *([by_category] if by_category.rows else []),
        *([versus_grid(comparisons)] if comparisons else []),
    ]


def conclude(
    path: Path,
    plan: EvalPlan,
    reports: Reports,
    comparisons: Sequence[Versus],
    console: Console,
    json_path: Path | None = None,
) -> None:
    """Write the files of an evaluation to its folder, and show the tables."""
    grids = grids_of(reports, comparisons)
    for grid in grids:
        console.print(grid.as_table())
    for label, report in reports.items():
        lost = f"{report.lost} episodes were lost and are excluded; the same command repeats them."
        warnings = [lost] if report.lost else []
        if warning := warn_of_cuts(report.cut_turns, plan.policy.turn_max_tokens):
            warnings.append(warning)
        for text in warnings:
            console.print(Text(f"{one_line(label)}: {text}", "yellow"), soft_wrap=True)
        if report.usage:
            used = ", ".join(f"{value:,} {name}" for name, value in report.usage.items())
            console.print(Text(f"{one_line(label)}: used {used}"), soft_wrap=True)
    text = evaluation_json(plan, reports, comparisons)
    (path / "report.json").write_text(text, encoding="utf-8")
    (path / "report.csv").write_text(as_csv(reports), encoding="utf-8")
    pages = "\n".join(grid.as_markdown() for grid in grids)
    (path / "report.md").write_text(pages, encoding="utf-8")
    chart = bar_chart(*report_bars(reports), path / "report.png")
    if json_path is not None:
        json_path.write_text(text, encoding="utf-8")
    console.print(
        f"Figures: {path}/report.json, .csv, .md{chart}   Episodes: {path}/trajectories",
        soft_wrap=True, markup=False, highlight=False,
    )  # fmt: skip


def report_bars(reports: Reports) -> tuple[dict[str, list[Bar | None]], list[str], str]:
    """(the success of each policy by group, the groups, the title of a chart): total, categories.

    With more than `MAX_CATEGORIES`, there is only the total.
    """
    first = next(iter(reports.values()))
    names = [name for name in first.categories if name != "all"]
    groups = ["all", *(names if len(names) <= MAX_CATEGORIES else [])]
    rows: dict[str, list[Bar | None]] = {}
    for label, report in reports.items():
        parts: dict[str, EvalReport | CategoryReport] = {**report.categories, "all": report}
        rows[label] = [
            (parts[name].success, parts[name].success_interval) if name in parts else None
            for name in groups
        ]
    return rows, groups, f"{first.env}, split {first.split}, horizon {first.horizon}"


def with_interval(value: float, interval: Interval | None) -> str:
    """A value with its interval."""
    return f"{value:.2f}" + ("" if interval is None else " ({:.2f}-{:.2f})".format(*interval))


def tasks_counted(number: int) -> str:
    """`1 task`, `2 tasks` and so on."""
    return "1 task" if number == 1 else f"{number} tasks"


def _no_formula(cell: str) -> str:
    """A text that no spreadsheet reads as a formula."""
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def _title(report: EvalReport) -> str:
    samples = f", {report.samples} samples each" if report.samples > 1 else ""
    return (
        f"{report.env}, {tasks_counted(report.tasks)} of split {report.split}{samples}, "
        f"horizon {report.horizon}"
    )


def _pass(report: EvalReport, k: int) -> str:
    """pass@k, if a task has that many samples."""
    if len(report.pass_at_k) < k:
        return "-"
    return with_interval(report.pass_at_k[k - 1], report.pass_at_k_intervals[k - 1])


def _range(interval: Interval | None) -> str:
    return "" if interval is None else " ({:+.2f} to {:+.2f})".format(*interval)


def _signed(interval: Interval | None) -> str:
    return "" if interval is None else " ({:+.3f} to {:+.3f})".format(*interval)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else "<0.0001"


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def _markdown(text: str) -> str:
    """Escaped text, without cell ends, emphasis or tags."""
    shown = one_line(text)
    for sign in "&\\`*_[]<>|":  # & first, as it is written for others
        shown = shown.replace(sign, f"&#{ord(sign)};" if sign in "<>&|" else f"\\{sign}")
    return shown
