"""Evaluation reports as tables and charts, for the terminal, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentgym_env.errors import ConfigError
from agentgym_env.printable import UncutTable, one_line
from agentgym_env.run_store import RunStore
from agentgym_train.evaluation.evaluate import EvalPlan
from agentgym_train.evaluation.report import (
    CategoryReport,
    Comparison,
    EpisodeFigures,
    EvalReport,
    Interval,
    compare,
    holm,
    report_of,
    warn_of_cuts,
    why_none_counts,
)


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """One model's success in one world."""

    name: str
    success: float
    categories: dict[str, float] = field(default_factory=dict)


_SCALED: Final = "AgentGym-RL 7B, ScalingInter (paper)"

_FIGURES: Final[dict[str, tuple[PaperFigure, ...]]] = {
    "agentgym/TextCraft-v0": (PaperFigure(_SCALED, 0.910),),
    "agentgym/BabyAI-v0": (PaperFigure(_SCALED, 0.967),),
    "agentgym/SciWorld-v0": (PaperFigure(_SCALED, 0.570),),
    "agentgym/Search-v0": (PaperFigure(_SCALED, 0.382),),
    "agentgym/WebArena-v0": (
        PaperFigure(
            _SCALED,
            0.260,
            # The paper has one figure for GitLab and Reddit together.
            {
                "shopping": 0.333, "shopping_admin": 0.267, "map": 0.200,
                "gitlab": 0.200, "reddit": 0.200,
            },
        ),
        PaperFigure("AgentGym-RL 7B, fixed horizon (paper)", 0.220),
        PaperFigure("Qwen2.5-7B-Instruct (paper)", 0.0976),
    ),
}  # fmt: skip


def paper_figures(env_id: str) -> tuple[PaperFigure, ...]:
    """The paper's results in a world, if it has any."""
    return _FIGURES.get(env_id, ())


MAX_CATEGORIES: Final = 40
"""With more categories, the chart shows only the total."""

_COLORS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#6b6b6b")
"""The palette of Okabe and Ito, for color-blind readers."""

_LINES: Final = (("#222222", "--"), ("#222222", ":"), ("#777777", "-."))


def bar_chart(reports: Mapping[str, EvalReport], path: Path) -> None:
    """Success in total and by category, with one bar per policy, as PNG."""
    from matplotlib.figure import Figure

    first = next(iter(reports.values()))
    names = [name for name in first.categories if name != "all"]
    groups = ["all", *(names if len(names) <= MAX_CATEGORIES else [])]
    thick = 0.8 / len(reports)
    height = 1.8 + len(groups) * max(0.45, 0.22 * len(reports))
    figure = Figure(figsize=(8, height), layout="constrained")
    axis = figure.subplots()
    for number, (label, report) in enumerate(reports.items()):
        parts: dict[str, EvalReport | CategoryReport] = {**report.categories, "all": report}
        there = [(row, parts[name]) for row, name in enumerate(groups) if name in parts]
        axis.barh(
            [row - 0.4 + thick * (number + 0.5) for row, _ in there],
            [part.success for _, part in there],
            height=thick * 0.92,
            xerr=_whiskers([part for _, part in there]),
            color=_COLORS[number % len(_COLORS)],
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#333333"},
            label=_plain(label),
        )
    _reference_lines(axis, first.env, groups)
    axis.set_yticks(range(len(groups)), [_plain(name) for name in groups])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.02)
    axis.set_xlabel("success, with 95 % intervals over tasks")
    axis.set_title(_plain(f"{first.env}, split {first.split}, horizon {first.horizon}"), loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside lower left", frameon=False, ncols=2, fontsize="small")
    with warnings.catch_warnings():
        # A name may be in a script that the font lacks, which draws boxes instead.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, dpi=130)


NO_CHART: Final = " (a chart needs matplotlib: pip install matplotlib)"

Bar = tuple[float, Interval | None]
"""A value and its interval."""


def grouped_bars(
    ours: Mapping[str, Sequence[Bar | None]],
    others: Mapping[str, Sequence[Bar | None]],
    groups: Sequence[str],
    path: Path,
) -> None:
    """Bars of success in groups, as PNG: `ours` in colors, then `others` hatched in greys.

    A bar of 0 has a 0 in its place, and one that is None, because it was not run, a dash.
    """
    from matplotlib.figure import Figure

    rows = {**ours, **others}
    thick = 0.84 / len(rows)
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axis = figure.subplots()
    for number, (label, bars) in enumerate(rows.items()):
        middle = thick * (number + 0.5) - 0.42
        there = [(place, bar) for place, bar in enumerate(bars) if bar is not None]
        grey = 0.92 - 0.5 * (number - len(ours)) / max(1, len(others))
        style: dict[str, Any] = {"color": _COLORS[number % len(_COLORS)]}
        if label in others:
            style = {"color": str(grey), "hatch": "//", "edgecolor": "#888888", "linewidth": 0.4}
        spans = [(value, interval or (value, value)) for _, (value, interval) in there]
        axis.bar(
            [place + middle for place, _ in there],
            [value for value, _ in spans],
            width=thick * 0.92,
            yerr=[
                [max(0.0, value - low) for value, (low, _) in spans],
                [max(0.0, high - value) for value, (_, high) in spans],
            ],
            error_kw={"elinewidth": 0 if label in others else 1, "ecolor": "#333333"},
            label=_plain(label),
            **style,
        )
        for place, bar in enumerate(bars):
            if bar is None or bar[0] == 0:
                top = 0.0 if bar is None or bar[1] is None else bar[1][1]
                axis.text(
                    place + middle,
                    top + 0.008,
                    "-" if bar is None else "0",
                    ha="center",
                    fontsize="x-small",
                )
    axis.set_xticks(range(len(groups)), groups, fontsize="small")
    axis.set_ylim(0, 1.02)
    axis.set_ylabel("success, with 95 % intervals (-: not run)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    figure.legend(loc="outside lower left", frameon=False, ncols=3, fontsize="small")
    figure.savefig(path, dpi=130)


def _reference_lines(axis: Any, env: str, groups: list[str]) -> None:
    for number, paper in enumerate(paper_figures(env)):
        color, dashes = _LINES[number % len(_LINES)]
        label = f"{paper.name}: {paper.success:.3f}"
        places = {"all": paper.success, **paper.categories}
        for row, name in enumerate(groups):
            if name in places:
                # Each group has its own line: the paper's total does not apply to a category.
                axis.plot(
                    [places[name]] * 2, [row - 0.46, row + 0.46], dashes, color=color,
                    linewidth=1.6, label=label if name == "all" else None,
                )  # fmt: skip


def _whiskers(parts: list[EvalReport | CategoryReport]) -> list[list[float]]:
    """(below, above) of each bar; zero without an interval."""
    below, above = [], []
    for part in parts:
        low, high = part.success_interval or (part.success, part.success)
        below.append(max(0.0, part.success - low))
        above.append(max(0.0, high - part.success))
    return [below, above]


def _plain(text: str) -> str:
    """Text that Matplotlib does not read as a formula; a leading underscore would hide it."""
    shown = one_line(text, 60).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


Reports = Mapping[str, EvalReport]

_CSV_COLUMNS: Final = (
    "policy", "category", "tasks", "samples", "episodes", "lost", "success", "success_low",
    "success_high", "avg_at_k", "score", "score_low", "score_high", "reward", "turns", "turns_low",
    "turns_high", "tokens", "invalid_actions", "cut_turns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Versus:
    """One policy against another by one metric."""

    policy: str
    baseline: str
    figure: str
    found: Comparison
    p_holm: float
    """The p-value, corrected for the other comparisons of that figure."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "policy": self.policy, "baseline": self.baseline, "figure": self.figure,
            "effect": self.found.effect, "interval": self.found.interval, "p": self.found.p,
            "p_holm": self.p_holm, "tasks": self.found.tasks, "better": self.found.better,
            "worse": self.found.worse,
        }  # fmt: skip


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


def versus_grid(comparisons: Sequence[Versus]) -> Grid:
    """One row per comparison; those by score only if score and success differ."""
    by_success = [each for each in comparisons if each.figure == "success"]
    by_score = [each for each in comparisons if each.figure == "score"]
    same = [each.found for each in by_success] == [each.found for each in by_score]
    shown = by_success if same else comparisons
    columns: dict[str, Callable[[Versus], str]] = {
        "difference (95 %)": lambda v: f"{v.found.effect:+.3f}{_signed(v.found.interval)}",
        "p": lambda v: _p(v.found.p),
    }
    if not same:
        columns = {"of": lambda v: v.figure, **columns}
    if len(by_success) > 1:
        columns["p (Holm)"] = lambda v: _p(v.p_holm)
    columns["better"] = lambda v: str(v.found.better)
    columns["worse"] = lambda v: str(v.found.worse)
    counts = {each.found.tasks for each in shown}
    title = "Paired, task by task"
    if len(counts) == 1:
        title += f", over {counts.pop()} tasks"
    else:
        columns["tasks"] = lambda v: str(v.found.tasks)
    rows = [[f"{v.policy} - {v.baseline}", *(cell(v) for cell in columns.values())] for v in shown]
    return Grid(title, ["", *columns], rows)


def paper_grid(env: str) -> Grid | None:
    """The paper's results in a world, if it has any."""
    figures = paper_figures(env)
    if not figures:
        return None
    rows = [[figure.name, f"{figure.success:.3f}"] for figure in figures]
    return Grid("Reported in arXiv:2509.08755, on its own tasks", ["", "success"], rows)


def as_csv(reports: Reports) -> str:
    """One line per policy and category; the category of a total is empty."""
    most = max(len(report.pass_at_k) for report in reports.values())
    passes = [f"pass_at_{k}" for k in range(1, most + 1)]
    out = io.StringIO()
    writer = csv.DictWriter(out, [*_CSV_COLUMNS, *passes], lineterminator="\n")
    writer.writeheader()
    for label, report in reports.items():
        whole = {
            "lost": report.lost, "avg_at_k": report.avg_at_k, "reward": report.reward,
            **_ends("score", report.score_interval), **_ends("turns", report.turns_interval),
        }  # fmt: skip
        parts = {} if list(report.categories) == ["all"] else report.categories
        writer.writerow(_csv_row(label, "", report, report.samples) | whole)
        writer.writerows(_csv_row(label, n, part, report.samples) for n, part in parts.items())
    return out.getvalue()


def with_interval(value: float, interval: Interval | None) -> str:
    """A value with its interval."""
    return f"{value:.2f}" + ("" if interval is None else " ({:.2f}-{:.2f})".format(*interval))


def _csv_row(
    label: str, category: str, part: EvalReport | CategoryReport, samples: int
) -> dict[str, Any]:
    same = (
        "tasks", "episodes", "success", "score", "turns", "tokens", "invalid_actions", "cut_turns",
    )  # fmt: skip
    return {
        "policy": _no_formula(label),
        "category": _no_formula(category),
        "samples": samples,
        **{name: getattr(part, name) for name in same},
        **_ends("success", part.success_interval),
        **{f"pass_at_{k}": value for k, value in enumerate(part.pass_at_k, 1)},
    }


def _no_formula(cell: str) -> str:
    """A text that no spreadsheet reads as a formula."""
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def _ends(name: str, interval: Interval | None) -> dict[str, float]:
    return {} if interval is None else {f"{name}_low": interval[0], f"{name}_high": interval[1]}


def tasks_counted(number: int) -> str:
    """`1 task`, `2 tasks` and so on."""
    return "1 task" if number == 1 else f"{number} tasks"


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


def check_baseline(labels: Sequence[str], baseline: str | None) -> None:
    """Raise `ConfigError` if no policy has this label."""
    if baseline is not None and baseline not in labels:
        raise ConfigError(f"--baseline {baseline!r} is not one of {', '.join(map(repr, labels))}")


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
