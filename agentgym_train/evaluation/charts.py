"""Charts of success as PNG, with matplotlib if it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from agentgym_env.printable import one_line
from agentgym_train.evaluation.statistics import Bar

_COLORS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#6b6b6b")
"""The palette of Okabe and Ito, for color-blind readers."""


def bar_chart(
    rows: Mapping[str, Sequence[Bar | None]],
    groups: Sequence[str],
    title: str,
    path: Path,
    published: Collection[str] = (),
) -> str:
    """Draw success in groups, with a bar per row: `rows[label][i]` is that of `groups[i]`.

    Rows in `published` are hatched in grey, without intervals. A bar of 0 has a 0 in its place; one
    that is None, because there is no result, is left out. Returns what follows the names of the
    other files of an evaluation.
    """
    if find_spec("matplotlib") is None:
        return " (a chart needs matplotlib: pip install matplotlib)"
    from matplotlib.figure import Figure

    thick = 0.84 / len(rows)
    height = 1.8 + len(groups) * max(0.45, 0.22 * len(rows))
    figure = Figure(figsize=(8, height), layout="constrained")
    axis = figure.subplots()
    for number, (label, bars) in enumerate(rows.items()):
        middle = thick * (number + 0.5) - 0.42
        there = [(place + middle, *bar) for place, bar in enumerate(bars) if bar is not None]
        style: dict[str, Any] = {"color": _COLORS[number % len(_COLORS)]}
        if label in published:
            grey = 0.92 - 0.5 * number / len(rows)
            style = {"color": str(grey), "hatch": "//", "edgecolor": "#888888", "linewidth": 0.4}
        axis.barh(
            [place for place, _, _ in there],
            [value for _, value, _ in there],
            height=thick * 0.92,
            xerr=[
                [max(0.0, value - (ends or (value,))[0]) for _, value, ends in there],
                [max(0.0, (ends or (value,))[-1] - value) for _, value, ends in there],
            ],
            error_kw={"elinewidth": 1, "capsize": 0 if label in published else 2},
            label=_plain(label),
            **style,
        )
        for place, value, ends in there:
            if value == 0:
                right = ends[1] if ends else 0.0
                axis.text(right + 0.01, place, "0", va="center", fontsize="x-small")
    axis.set_yticks(range(len(groups)), [_plain(name) for name in groups])
    axis.set_ylim(len(groups) - 0.5, -0.5)
    axis.set_xlim(0, 1.02)
    axis.set_xlabel("success, with 95 % intervals over tasks")
    axis.set_title(_plain(title), loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)
    figure.legend(loc="outside lower left", frameon=False, ncols=2, fontsize="small")
    with warnings.catch_warnings():
        # A name may be in a script that the font lacks, which draws boxes instead.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, dpi=130)
    return ", .png"


def _plain(text: str) -> str:
    """Text that Matplotlib does not read as a formula; a leading underscore would hide it."""
    shown = one_line(text, 60).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
