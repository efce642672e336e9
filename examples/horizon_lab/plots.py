"""The plots of the study: curves with the horizon below them, the map, and test-time scaling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from plan import CONTROL, SCHEDULES, STAGED

from agentgym_env.run_store import RunStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kept = Mapping[str, Any]
_COLORS = {name: f"C{number}" for number, name in enumerate(SCHEDULES)} | {CONTROL: "#30343f"}
_POINTS = 60
"""Places of the budget at which curves are averaged over seeds."""


def draw(out: Path, cells: Sequence[Kept]) -> list[Path]:
    """All plots that the finished cells allow; their paths."""
    paths = []
    for part, world in sorted({(cell["part"], cell["world"]) for cell in cells}):
        arms = [cell for cell in cells if (cell["part"], cell["world"]) == (part, world)]
        if part == "map":
            paths.append(_map(arms, out / f"map-{world}.png"))
            continue
        for variant in sorted({(cell["algorithm"], cell["tag"]) for cell in arms}):
            own = [cell for cell in arms if (cell["algorithm"], cell["tag"]) == variant]
            name = "-".join(filter(None, (part, world, variant[0].rpartition(":")[2], variant[1])))
            paths.append(_success(own, out / f"{name}.png"))
            paths.append(_mechanism(own, out / f"{name}-mechanism.png"))
    scaled = RunStore(out).read_json("scaling.json")
    if scaled is not None:
        paths.append(_scaling(scaled["policies"], out / "scaling.png"))
    return paths


def _success(cells: Sequence[Kept], path: Path) -> Path:
    """Success at the three evaluation horizons over the environment steps, and the horizon."""
    horizons = cells[0]["horizons"]
    rows = [
        (f"within {h} turns", _curve(lambda row, h=h: row["success"][str(h)])) for h in horizons
    ]
    return _panels(cells, rows, path, f"success on {cells[0]['curve'][0]['split']} tasks", (0, 1))


def _mechanism(cells: Sequence[Kept], path: Path) -> Path:
    """What accompanies it: entropy, KL, invalid actions, informative groups, gradient norm."""
    rows = [
        ("entropy", _curve(lambda row: row["entropy"])),
        ("KL from the start", _curve(lambda row: row["kl"])),
        ("invalid actions", _curve(lambda row: row["invalid_actions"])),
        ("informative groups", _trained("informative_groups")),
        ("gradient norm", _trained("grad_norm")),
        ("turns", _trained("turns")),
    ]
    return _panels(cells, rows, path, "", None)


Line = Callable[[Kept], tuple[list[float], list[float]]]
"""(environment steps, values) of a cell."""


def _curve(value: Callable[[Kept], float | None]) -> Line:
    def of(cell: Kept) -> tuple[list[float], list[float]]:
        rows = [row for row in cell["curve"] if value(row) is not None]
        return [row["env_steps"] for row in rows], [value(row) or 0.0 for row in rows]

    return of


def _trained(name: str) -> Line:
    def of(cell: Kept) -> tuple[list[float], list[float]]:
        spent = accumulate(cell["training"]["env_steps"])
        pairs = zip(spent, cell["training"][name], strict=True)
        known = [(steps, value) for steps, value in pairs if value is not None]
        return [steps for steps, _ in known], [value for _, value in known]

    return of


def _panels(
    cells: Sequence[Kept],
    rows: Sequence[tuple[str, Line]],
    path: Path,
    title: str,
    limits: tuple[float, float] | None,
) -> Path:
    """One panel per figure, above the horizon; each seed is faint, the mean over seeds strong."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.1 * len(rows) + 1.9), layout="constrained")
    axes = figure.subplots(
        len(rows) + 1, 1, sharex=True, height_ratios=[*[1.3] * len(rows), 1], squeeze=False
    )[:, 0]
    arms = {
        name: [cell for cell in cells if cell["schedule"] == name]
        for name in (*SCHEDULES, CONTROL)
        if any(cell["schedule"] == name for cell in cells)
    }
    lines = [*rows, ("horizon, turns", _trained("horizon"))]
    for axis, (label, line) in zip(axes, lines, strict=True):
        for name, arm in arms.items():
            _draw_arm(axis, [line(cell) for cell in arm], _COLORS[name], _shown(name))
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
        if limits and axis is not axes[-1]:
            axis.set_ylim(limits[0] - 0.02, limits[1] + 0.02)
    axes[-1].set_ylim(bottom=0)
    axes[-1].set_xlabel("environment steps")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper right", frameon=False, ncols=4
    )
    seeds = len({cell["seed"] for cell in cells})
    word = "seed" if seeds == 1 else "seeds"
    names = " ".join(filter(None, (cells[0]["world"], _short(cells[0]["algorithm"]), title)))
    axes[0].set_title(f"{names}, {seeds} {word}", loc="left")
    figure.savefig(path, dpi=110)
    return path


def _draw_arm(
    axis: Axes, lines: Sequence[tuple[list[float], list[float]]], color: str, label: str
) -> None:
    drawn = [(steps, values) for steps, values in lines if steps]
    if not drawn:
        return
    for steps, values in drawn if len(drawn) > 1 else ():
        axis.plot(steps, values, color=color, alpha=0.18, linewidth=0.8)
    begin, end = max(s[0] for s, _ in drawn), min(s[-1] for s, _ in drawn)
    if end < begin:
        return
    grid = np.linspace(begin, end, _POINTS)
    mean = np.mean([np.interp(grid, steps, values) for steps, values in drawn], axis=0)
    marker = "o" if begin == end else None
    axis.plot(grid, mean, color=color, linewidth=1.8, label=label, marker=marker)


def _map(cells: Sequence[Kept], path: Path) -> Path:
    """How far the staged schedule ends above the better of the fixed ones, for each setting."""
    from matplotlib.figure import Figure

    settings = sorted({(cell["shaped"], cell["tasks"], cell["group"]) for cell in cells})
    tasks = sorted({t for _, t, _ in settings}, key=["TowerTo4", "TowerTo12", "Tower"].index)
    groups = sorted({g for _, _, g in settings})
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axis, shaped in zip(panels, (False, True), strict=True):
        table = np.array(
            [[_advantage(cells, shaped, t, g) for g in groups] for t in tasks]
        )  # (tasks, groups)
        shown = axis.imshow(table, cmap="RdBu", vmin=-0.3, vmax=0.3, aspect="auto")
        for (row, column), value in np.ndenumerate(table):
            axis.text(column, row, f"{value:+.2f}", ha="center", va="center")
        axis.set_xticks(range(len(groups)), [f"{g} per task" for g in groups])
        axis.set_yticks(range(len(tasks)), tasks)
        axis.set_title("shaped reward" if shaped else "sparse reward")
    figure.colorbar(shown, ax=panels, label=f"{STAGED} less the better fixed horizon")
    figure.savefig(path, dpi=110)
    return path


def _advantage(cells: Sequence[Kept], shaped: bool, tasks: str, group: int) -> float:
    """NaN where a schedule has no finished cell."""
    found = [c for c in cells if (c["shaped"], c["tasks"], c["group"]) == (shaped, tasks, group)]
    means = {}
    for name in ("short", "long", STAGED):
        values = [
            c["final"]["success"][str(max(c["horizons"]))] for c in found if c["schedule"] == name
        ]
        means[name] = fmean(values) if values else float("nan")
    return means[STAGED] - max(means["short"], means["long"])


def _scaling(rows: Sequence[Kept], path: Path) -> Path:
    """Success over the evaluation horizon, and pass@k over k, of each schedule's policies."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axis, name, label in (
        (left, "success", "turns allowed in evaluation"),
        (right, "pass_at_k", "k of pass@k, at the longest horizon"),
    ):
        for schedule in dict.fromkeys(row["schedule"] for row in rows):
            own = [row[name] for row in rows if row["schedule"] == schedule]
            places = [int(place) for place in own[0]]
            means = [fmean(row[str(place)] for row in own) for place in places]
            color = _COLORS.get(schedule, "#30343f")
            axis.plot(places, means, "o-", ms=3, color=color, label=_shown(schedule))
        axis.set_xlabel(label)
        axis.set_xscale("log", base=2)
        axis.set_ylim(-0.02, 1.02)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    left.set_ylabel("success")
    left.legend(frameon=False)
    figure.savefig(path, dpi=110)
    return path


def _shown(schedule: str) -> str:
    return f"{schedule} (lr 0)" if schedule == CONTROL else schedule


def _short(algorithm: str) -> str:
    return algorithm.rpartition(":")[2]
