"""Charts of success as PNG; loads matplotlib only to draw one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agentgym_env.printable import one_line
from agentgym_train.evaluation.paper import paper_figures
from agentgym_train.evaluation.report import CategoryReport, EvalReport
from agentgym_train.evaluation.statistics import Interval

MAX_CATEGORIES: Final = 40
"""With more categories, the chart shows only the total."""

NO_CHART: Final = " (a chart needs matplotlib: pip install matplotlib)"

_COLORS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#6b6b6b")
"""The palette of Okabe and Ito, for color-blind readers."""

_LINES: Final = (("#222222", "--"), ("#222222", ":"), ("#777777", "-."))

Bar = tuple[float, Interval | None]
"""A value and its interval."""


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
