"""The end of a run: summary.json, curves.png, and the commands that are suggested."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from agentgym_env.printable import UncutTable
from agentgym_env.run_store import RunStore, last_step
from agentgym_train.config.files import STARTER
from agentgym_train.config.learn import AgentEvolConfig
from agentgym_train.config.policy import HORIZON
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.trust import is_known, trust_option
from agentgym_train.evaluation.report import Reports, warn_of_cuts
from agentgym_train.training.checkpoints import last_checkpoint

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


def summary(config: RLConfig, rows: Rows, before: Reports, after: Reports) -> dict[str, Any]:
    """The summary.json of an RL run."""
    return _evaluations(config, before, after) | {
        "train_seconds": _seconds(rows, "seconds"),
        "env_steps": int(sum(row["env_steps"] for row in rows)),
        "sampled_tokens": int(sum(row["sampled_tokens"] for row in rows)),
        "episodes": len(rows) * config.episodes_per_step,
        "lost_episodes": int(sum(row["lost"] for row in rows)),
        "retried_episodes": int(sum(row["retried"] for row in rows)),
        "cut_turns": _cut_turns(rows),
        "steps": last_step(rows),
    }


def learning_summary(
    config: RunConfig, rows: Rows, before: Reports, after: Reports
) -> dict[str, Any]:
    """The summary.json of an SFT or DPO run."""
    return _evaluations(config, before, after) | {
        "method": config.method,
        "loss_first": rows[0]["loss"] if rows else None,
        "loss_last": rows[-1]["loss"] if rows else None,
        "train_seconds": _seconds(rows, "seconds"),
        "steps": last_step(rows),
    }


def last_words(config: RLConfig, rows: Rows) -> list[str]:
    """How many episodes were lost, and how many turns were cut, if any and many."""
    found = []
    retried, lost = (int(sum(row[name] for row in rows)) for name in ("retried", "lost"))
    if retried:
        found.append(
            f"{retried} episodes were retried; {lost} of them remained lost and are excluded from "
            "loss and baseline."
        )
    if cuts := warn_of_cuts(_cut_turns(rows), config.turn_max_tokens):
        found.append(f"In training {cuts}.")
    return [f"[yellow]{words}[/]" for words in found]


def conclude_evolution(config: AgentEvolConfig, store: RunStore, console: Console) -> None:
    """Write the summary of AgentEvol, and show its table and the next command."""
    rows, _ = store.metrics()
    envs = [world.env for world in config.worlds]
    first = RunStore(store.path / f"iteration-{rows[0]['step']}")
    before = first.read_json("eval_before.json") or {}
    reports = before if len(envs) > 1 else {envs[0]: before}
    base = {env: report["success"] for env, report in reports.items()} if before else {}
    console.print(_iterations_table(envs, base, rows))
    keys = {f"success/{env}" if len(envs) > 1 else "success": env for env in envs}
    start = {key: base[env] for key, env in keys.items() if env in base}
    evaluated = [{"step": rows[0]["step"] - 1, **start}] if start else []
    evaluated += [row for row in rows if "success" in row]
    title = f"AgentEvol, {', '.join(envs)}, seed {config.seed}"
    panel = Panel("success on held-out tasks", keys, is_share=True, smooths=False)
    picture = plot(evaluated, [panel], title, store.path, "iteration, after the base policy")
    summary = {
        "method": config.method,
        "success_before": fmean(base.values()) if base else None,
        "success_after": rows[-1].get("success"),
        "train_seconds": _seconds(rows, "train_seconds"),
        "seed": config.seed,
        "envs": envs,
        "before": before or None,
        "iterations": rows,
    }
    if before:
        store.write_json("eval_before.json", before)
    store.write_json("summary.json", summary)
    show_end(store, picture, next_commands(config, store), console)


def show_end(
    store: RunStore, picture: Path | None, commands: Sequence[tuple[str, str]], console: Console
) -> None:
    """Show where the results are, and the suggested commands."""
    console.print(f"Summary: {store.path}/summary.json   Curves: {picture}", soft_wrap=True)
    if commands:
        console.print("Next steps:")
    for command, purpose in commands:
        console.print(f"  [bold]{command}[/]\n      {purpose}", soft_wrap=True, highlight=False)


def _evaluations(config: RunConfig, before: Reports, after: Reports) -> dict[str, Any]:
    """The results before and after; of several environments the mean success, and each report."""
    shared = {
        f"success_{name}": fmean(r.success for r in reports.values()) if reports else None
        for name, reports in (("before", before), ("after", after))
    }
    worlds = config.worlds
    if len(worlds) > 1:
        return shared | {
            "seed": config.seed,
            "envs": {
                world.env: {"eval_split": world.eval.split, "eval_horizon": world.eval.horizon}
                for world in worlds
            },
            "before": {env: report.as_dict() for env, report in before.items()},
            "after": {env: report.as_dict() for env, report in after.items()},
        }
    first, last = (next(iter(reports.values()), None) for reports in (before, after))
    return shared | {
        "seed": config.seed,
        "env": worlds[0].env if worlds else "",
        "eval_split": worlds[0].eval.split if worlds else config.eval.split,
        "eval_horizon": worlds[0].eval.horizon if worlds else config.eval.horizon or HORIZON,
        "before": first.as_dict() if first else None,
        "after": last.as_dict() if last else None,
    }


def _seconds(rows: Rows, name: str) -> float:
    return round(sum(row[name] for row in rows), 1)


def _cut_turns(rows: Rows) -> float | None:
    """The share of cut turns in all steps; None if no step tells of them."""
    known = [row for row in rows if row.get("cut_turns") is not None and row["turns"]]
    turns = sum(row["turns"] for row in known)
    return sum(row["cut_turns"] * row["turns"] for row in known) / turns if known else None


def _iterations_table(envs: Sequence[str], base: Mapping[str, float], rows: Rows) -> UncutTable:
    table = Table(title="AgentEvol: success on held-out tasks")
    for name in ("iteration", "explored", "selected", "learned", *envs):
        table.add_column(name, justify="right")
    if base:
        table.add_row("base", "", "", "", *(f"{base[env]:.2f}" for env in envs))
    for row in rows:
        counts = (f"{row[name]:.0f}" for name in ("step", "explored", "kept", "rows"))
        found = [row.get(f"success/{env}", row.get("success")) for env in envs]
        table.add_row(*counts, *("" if value is None else f"{value:.2f}" for value in found))
    return UncutTable(table)


def next_commands(config: RunConfig, store: RunStore) -> list[tuple[str, str]]:
    """(command, purpose) of the suggested commands after a run."""
    run = store.path
    found = [(shlex.join(["agentgym", "view", str(run)]), "read its episodes, the failures first")]
    for world in config.worlds:
        words = [
            "agentgym", "eval", "--env", world.env, "--policy", f"{run}/model",
            "--split", world.eval.split, "--horizon", str(world.eval.horizon),
            "--settings-of", str(run),
        ]  # fmt: skip
        if not is_known("agent", config.agent):
            words += ["--agent", _option(config.agent)]
        for wrapper in world.wrappers or []:
            words += ["--wrapper", _option(wrapper)]
        found.append((shlex.join(words), "evaluate the trained policy"))
    can_resume = not (store.read_json("run.json") or {}).get("objects")
    if can_resume and last_checkpoint(store.checkpoints) is not None:
        rows, _ = store.metrics()
        command = f"agentgym train --resume {run} --steps {2 * max(1, last_step(rows))}"
        trusted = command + trust_option(config.as_dict())
        found.append((trusted, "train it further, to twice as many steps"))
    if config.model.startswith(STARTER):
        found.append(("agentgym new my-world", "write a world of your own, with its own training"))
    return found


def _option(value: str | Mapping[str, Any]) -> str:
    return value if isinstance(value, str) else json.dumps(value)


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
