"""The curves of a run, curves.png, by method; loads matplotlib only to draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agentgym_env.run_store import RunStore
from agentgym_train.config.learn import AgentEvolConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHED_OVER = 10
"""Steps of the plot's moving average."""


def plot(store: RunStore, title: str) -> Path | None:
    """Plot reward, success and horizon over the steps as PNG; None if nothing was trained."""
    rows, _ = store.metrics()
    return _save(figure_of(rows, title), store.path) if rows else None


def figure_of(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The plot of an RL run. Rewards outside 0 to 1 have a separate axis.

    Where groups were replaced, success includes them and the reward does not.
    """
    from matplotlib.figure import Figure

    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    rewards = [row["reward"] for row in rows]
    of_reward = upper if min(rewards) >= 0 and max(rewards) <= 1 else upper.twinx()
    # Reward is dashed and on top: with a reward for success only the two lines coincide.
    replaced = any(row.get("discarded_env_steps") for row in rows)
    of_all, of_kept = (", all groups", ", groups trained on") if replaced else ("", "")
    drawn = []
    for axis, name, color, dashes, of in (
        (upper, "success", "#00798c", "-", of_all),
        (of_reward, "reward", "#d1495b", "--", of_kept),
    ):
        drawn += _smoothed(axis, rows, name, color, dashes, label=name + of)
    for number, name in enumerate(n for n in rows[-1] if n.startswith("success/")):
        known = [row for row in rows if row.get(name) is not None]
        label = name.rpartition("/")[2]
        drawn += _smoothed(upper, known, name, f"C{number + 1}", ":", label=label)
    upper.set_ylim(-0.02, 1.02)
    upper.set_ylabel("mean over the step's episodes")
    if of_reward is not upper:
        upper.set_ylabel("success, mean over the step's episodes")
        of_reward.set_ylabel("reward, mean over the step's episodes")
        of_reward.spines["top"].set_visible(False)
    upper.legend(
        handles=drawn, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2,
        frameon=False, ncols=2,
    )  # fmt: skip
    upper.set_title(title, loc="left")
    horizons = [row["horizon"] for row in rows]
    lower.step(steps, horizons, where="post", color="#30343f", label="horizon")
    lower.plot(steps, [row["turns"] for row in rows], color="#edae49", label="turns taken")
    lower.set_ylabel("turns")
    lower.set_xlabel("step (one rollout each)")
    lower.set_ylim(bottom=0)
    lower.legend(loc="lower right", frameon=False, ncols=2)
    _plain_axes(upper, lower)
    return figure


def plot_learning(store: RunStore, title: str, curves: Mapping[str, str]) -> Path | None:
    """Plot one panel per metric as PNG; None if nothing was trained.

    `curves` maps the name of each metric to the label of its axis.
    """
    from matplotlib.figure import Figure

    rows, _ = store.metrics()
    if not rows:
        return None
    figure = Figure(figsize=(8, 2.8 * len(curves)), layout="constrained")
    axes = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
    for number, (axis, (name, label)) in enumerate(zip(axes, curves.items(), strict=True)):
        _smoothed(axis, rows, name, f"C{number}")
        axis.set_ylabel(label)
    _plain_axes(*axes)
    axes[0].set_title(title, loc="left")
    axes[-1].set_xlabel("optimizer step")
    return _save(figure, store.path)


def plot_iterations(
    config: AgentEvolConfig,
    base: Mapping[str, float],
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
) -> Path | None:
    """Plot success per iteration of AgentEvol, with the base policy as dashed lines."""
    from matplotlib.figure import Figure

    evaluated = [row for row in rows if "success" in row]
    if not evaluated:
        return None
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axis = figure.subplots()
    steps = [row["step"] for row in evaluated]
    for number, world in enumerate(config.worlds):
        values = [success_in(world.env, row) for row in evaluated]
        axis.plot(steps, values, "o-", color=f"C{number}", label=world.env)
        if world.env in base:
            axis.axhline(base[world.env], color=f"C{number}", linestyle="--", linewidth=1)
    axis.set_xticks(steps)
    axis.set_xlabel("iteration (dashed: the base policy)")
    axis.set_ylabel("success on held-out tasks")
    axis.set_ylim(-0.02, 1.02)
    axis.legend(frameon=False)
    axis.set_title(f"AgentEvol, seed {config.seed}", loc="left")
    _plain_axes(axis)
    return _save(figure, folder)


def success_in(env: str, row: Mapping[str, Any]) -> float:
    """The success of an iteration in an environment; of one alone it is that of the iteration."""
    found: float = row.get(f"success/{env}", row.get("success", nan))
    return found


def smooth(values: list[float]) -> list[float]:
    """The moving average over the last steps."""
    return [fmean(values[max(0, end - SMOOTHED_OVER) : end]) for end in range(1, len(values) + 1)]


def _smoothed(
    axis: Any,
    rows: Sequence[Mapping[str, Any]],
    name: str,
    color: str,
    dashes: str = "-",
    label: str | None = None,
) -> list[Any]:
    """Draw a metric in a light color and its moving average on top; returns the latter's lines."""
    steps, values = [row["step"] for row in rows], [row[name] for row in rows]
    axis.plot(steps, values, color=color, alpha=0.25, linewidth=1)
    lines: list[Any] = axis.plot(
        steps, smooth(values), dashes, color=color, linewidth=2, label=label
    )
    return lines


def _plain_axes(*axes: Any) -> None:
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)


def _save(figure: Figure, folder: Path) -> Path:
    path = folder / "curves.png"
    figure.savefig(path, dpi=130)
    return path
