"""The end of a run: a table, a plot, summary.json, and the commands to type next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from agentgym_env.run_store import RunStore
from agentgym_train.config.methods import RLConfig
from agentgym_train.evaluation.evaluate import EvalReport
from agentgym_train.evaluation.tables import category_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from agentgym_train.config.base import RunConfig

SMOOTHED_OVER = 10

"""Steps of the plot's moving average."""


def summary(
    config: RLConfig,
    store: RunStore,
    before: EvalReport | None,
    after: EvalReport | None,
) -> dict[str, Any]:
    """The run in figures: what summary.json holds."""
    rows, _ = store.metrics()
    return {
        "success_before": before.success if before else None,
        "success_after": after.success if after else None,
        "train_seconds": round(sum(row["seconds"] for row in rows), 1),
        "env_steps": int(sum(row["env_steps"] for row in rows)),
        "sampled_tokens": int(sum(row["sampled_tokens"] for row in rows)),
        "episodes": len(rows) * config.episodes_per_step,
        "lost_episodes": int(sum(row["lost"] for row in rows)),
        "retried_episodes": int(sum(row["retried"] for row in rows)),
        "steps": len(rows),
        "seed": config.seed,
        "env": config.env,
        "eval_split": config.eval_split,
        "eval_horizon": config.fixed_eval_horizon,
        "before": before.as_dict() if before else None,
        "after": after.as_dict() if after else None,
    }


def success_table(reports: dict[str, EvalReport]) -> Table:
    """Success and mean turns by category, a pair of columns a report."""
    return category_grid(reports).as_table()


def plot(store: RunStore, title: str) -> Path | None:
    """Reward, success and horizon over the steps, as PNG; None where nothing was trained."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows, _ = store.metrics()
    if not rows:
        return None
    figure = figure_of(rows, title)
    path = store.path / "curves.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def figure_of(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The plot of a run's steps. Rewards that leave 0 to 1 have a scale of their own."""
    from matplotlib import pyplot as plt

    steps = [row["step"] for row in rows]
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(8, 5.6), sharex=True, height_ratios=[3, 1], layout="constrained"
    )
    rewards = [row["reward"] for row in rows]
    paid = upper if min(rewards) >= 0 and max(rewards) <= 1 else upper.twinx()
    # Reward is dashed and on top: where a world pays for success alone, the two are one line.
    drawn = []
    for axis, name, color, dashes in (
        (upper, "success", "#00798c", "-"),
        (paid, "reward", "#d1495b", "--"),
    ):
        values = [row[name] for row in rows]
        axis.plot(steps, values, color=color, alpha=0.25, linewidth=1)
        drawn += axis.plot(steps, smooth(values), dashes, color=color, linewidth=2, label=name)
    upper.set_ylim(-0.02, 1.02)
    upper.set_ylabel("mean over the step's episodes")
    if paid is not upper:
        upper.set_ylabel("success, mean over the step's episodes")
        paid.set_ylabel("reward, likewise")
        paid.spines["top"].set_visible(False)
    upper.legend(
        handles=drawn, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2,
        frameon=False, ncols=2,
    )  # fmt: skip
    upper.set_title(title, loc="left")
    lower.step(
        steps, [row["horizon"] for row in rows], where="post", color="#30343f", label="horizon"
    )
    lower.plot(steps, [row["turns"] for row in rows], color="#edae49", label="turns taken")
    lower.set_ylabel("turns")
    lower.set_xlabel("optimizer step")
    lower.set_ylim(bottom=0)
    lower.legend(loc="lower right", frameon=False, ncols=2)
    for axis in (upper, lower):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    return figure


def lost_episodes(store: RunStore) -> str | None:
    """How many episodes were tried again and how many stayed lost; None if none was."""
    rows, _ = store.metrics()
    retried, lost = (int(sum(row[name] for row in rows)) for name in ("retried", "lost"))
    if not retried:
        return None
    return (
        f"[yellow]{retried} episodes were tried again; {lost} of them stayed lost and are in "
        "neither loss nor baseline.[/]"
    )


def next_commands(config: RLConfig, store: RunStore) -> list[tuple[str, str]]:
    """(command, what it does): three things a user would type now."""
    run = store.path
    return [
        (
            f"agentgym eval --env {config.env} --policy {run}/model --split {config.split} "
            f"--horizon {config.fixed_eval_horizon}"
            + (' --instruction ""' if config.instruction == "" else ""),
            "evaluate the trained policy on another split",
        ),
        (
            f"agentgym eval --env {config.env} --policy expert --split {config.eval_split}",
            "see how far the oracle goes",
        ),
        (
            f"agentgym train {run}/config.yaml --output_dir {run}-longer "
            f"--model {run}/model --steps {config.steps}",
            "train on from here",
        ),
    ]


def smooth(values: list[float]) -> list[float]:
    """The moving average over the last steps."""
    smoothed = []
    for end in range(1, len(values) + 1):
        window = values[max(0, end - SMOOTHED_OVER) : end]
        smoothed.append(sum(window) / len(window))
    return smoothed


def learning_summary(
    config: RunConfig, store: RunStore, before: EvalReport | None, after: EvalReport | None
) -> dict[str, Any]:
    """The run in figures: what summary.json holds."""
    rows, _ = store.metrics()
    return {
        "method": config.method,
        "success_before": before.success if before else None,
        "success_after": after.success if after else None,
        "loss_first": rows[0]["loss"] if rows else None,
        "loss_last": rows[-1]["loss"] if rows else None,
        "train_seconds": round(sum(row["seconds"] for row in rows), 1),
        "steps": len(rows),
        "seed": config.seed,
        "env": config.env,
        "eval_split": config.eval_split,
        "eval_horizon": config.fixed_eval_horizon,
        "before": before.as_dict() if before else None,
        "after": after.as_dict() if after else None,
    }


def plot_learning(store: RunStore, title: str, curves: Mapping[str, str]) -> Path | None:
    """One panel a figure of the steps, as PNG; None where nothing was trained.

    `curves` has the name of each figure and what is written beside it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows, _ = store.metrics()
    if not rows:
        return None
    steps = [row["step"] for row in rows]
    figure, axes = plt.subplots(
        len(curves), 1, figsize=(8, 2.8 * len(curves)), sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for number, (axis, (name, label)) in enumerate(zip(axes[:, 0], curves.items(), strict=True)):
        values = [row[name] for row in rows]
        color = f"C{number}"
        axis.plot(steps, values, color=color, alpha=0.25, linewidth=1)
        axis.plot(steps, smooth(values), color=color, linewidth=2)
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    axes[0, 0].set_title(title, loc="left")
    axes[-1, 0].set_xlabel("optimizer step")
    path = store.path / "curves.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def next_learning_commands(config: RunConfig, store: RunStore) -> list[tuple[str, str]]:
    """(command, what it does): what a user would type now."""
    model = store.path / "model"
    told = ' --instruction ""' if config.instruction == "" else ""
    env = config.env or "ENV"
    return [
        (
            f"agentgym eval --env {env} --policy {model} --split {config.eval_split} "
            f"--horizon {config.fixed_eval_horizon}{told}",
            "evaluate the policy",
        ),
        (
            f"agentgym collect --env {env} --policy {model} --split train --out {model}-episodes",
            "let it play: pairs for method: dpo, or more to imitate",
        ),
        (
            f"agentgym train CONFIG --model {model} --output_dir {store.path}-rl",
            "go on with another method from here",
        ),
    ]
