"""The curves of a run, curves.png; loads matplotlib only to draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHED_OVER: Final = 10
"""Steps of the moving average."""

Rows = Sequence[Mapping[str, Any]]
"""The metrics of a run, by step."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the plots above each other: metrics with the label of each, and the axis."""

    axis: str
    """Label of the axis."""
    curves: Mapping[str, str]
    """Metric -> its label."""
    is_share: bool = False
    """Whether the axis is from 0 to 1."""
    smooths: bool = True
    """Whether a moving average is drawn over the values."""


def panels_of(rows: Rows) -> list[Panel]:
    """Reward and success of an RL run, in one panel if both are between 0 and 1, and its turns."""
    rewards = [row["reward"] for row in rows]
    # Where groups were replaced, success includes them and the reward does not.
    replaced = any(row.get("discarded_env_steps") for row in rows)
    of_all, of_kept = (", all groups", ", groups trained on") if replaced else ("", "")
    shares = {"success": f"success{of_all}"}
    shares |= {
        n: f"success in {n.rpartition('/')[2]}" for n in rows[-1] if n.startswith("success/")
    }
    reward = {"reward": f"reward{of_kept}"}
    label = "mean over the step's episodes"
    turns = Panel("turns", {"horizon": "horizon", "turns": "turns taken"}, smooths=False)
    if min(rewards) >= 0 and max(rewards) <= 1:
        return [Panel(label, shares | reward, is_share=True), turns]
    return [Panel(label, shares, is_share=True), Panel(label, reward), turns]


def plot(rows: Rows, panels: Sequence[Panel], title: str, folder: Path, x: str) -> Path | None:
    """Write curves.png, with `x` the label of the steps; None if nothing was trained."""
    if not rows:
        return None
    path = folder / "curves.png"
    figure_of(rows, panels, title, x).savefig(path, dpi=130)
    return path


def figure_of(rows: Rows, panels: Sequence[Panel], title: str, x: str) -> Figure:
    """The panels above each other."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 0.8 + 2.4 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    number = 0
    for axis, panel in zip(axes, panels, strict=True):
        for metric, label in panel.curves.items():
            known = [row for row in rows if row.get(metric) is not None]
            steps, values = [row["step"] for row in known], [row[metric] for row in known]
            # Success and a reward for success alone coincide, so the later one is dashed.
            style = {"color": f"C{number}", "linestyle": "--" if metric == "reward" else "-"}
            if len(values) <= SMOOTHED_OVER:  # a single point has no line
                style["marker"] = "o"
            if panel.smooths:
                axis.plot(steps, values, color=f"C{number}", alpha=0.25, linewidth=1)
                values = smooth(values)
            axis.plot(steps, values, label=label, **style)
            number += 1
        axis.set_ylabel(panel.axis)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
        if panel.is_share:
            axis.set_ylim(-0.02, 1.02)
        if len(panel.curves) > 1:
            axis.legend(frameon=False, fontsize="small")
    axes[0].set_title(title, loc="left")
    axes[-1].set_xlabel(x)
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def smooth(values: Sequence[float]) -> list[float]:
    """The moving average over the last steps."""
    return [fmean(values[max(0, end - SMOOTHED_OVER) : end]) for end in range(1, len(values) + 1)]
