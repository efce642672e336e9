"""The end of a run: summary.json, the result table, the curves and the suggested commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console
from rich.table import Table

from agentgym_env.printable import UncutTable
from agentgym_env.run_store import RunStore, last_step
from agentgym_train.config.files import user_path
from agentgym_train.config.learn import AgentEvolConfig, DPOConfig, SFTConfig
from agentgym_train.config.policy import SETTINGS_OF_A_RUN, PolicyConfig
from agentgym_train.config.read import DEFAULT
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.trust import is_known, trust_option
from agentgym_train.config.worlds import RLWorld
from agentgym_train.evaluation.report import Reports, warn_of_cuts
from agentgym_train.evaluation.tables import category_grid
from agentgym_train.training.callbacks import last_checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEAK = 0.05
"""Success below which the suggestion after SFT is to find out why."""
_NOTHING_TO_LEARN = (
    "read five failures. Where next to nothing is solved, RL has no success to learn from: begin "
    "with a policy that solves some tasks, such as one after SFT"
)
SMOOTHED_OVER = 10
"""Steps of the plot's moving average."""


def summary(config: RLConfig, store: RunStore, before: Reports, after: Reports) -> dict[str, Any]:
    """The summary.json of an RL run."""
    rows, _ = store.metrics()
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
    config: RunConfig, store: RunStore, before: Reports, after: Reports
) -> dict[str, Any]:
    """The summary.json of an SFT or DPO run."""
    rows, _ = store.metrics()
    return _evaluations(config, before, after) | {
        "method": config.method,
        "loss_first": rows[0]["loss"] if rows else None,
        "loss_last": rows[-1]["loss"] if rows else None,
        "train_seconds": _seconds(rows, "seconds"),
        "steps": last_step(rows),
    }


def _evaluations(config: RunConfig, before: Reports, after: Reports) -> dict[str, Any]:
    """The results before and after; of several environments the mean success, and each report."""
    shared = {
        f"success_{name}": fmean(r.success for r in reports.values()) if reports else None
        for name, reports in (("before", before), ("after", after))
    }
    if isinstance(config, RLConfig) and config.envs:
        return shared | {
            "seed": config.seed,
            "envs": {
                world.env: {"eval_split": world.eval_split, "eval_horizon": world.eval_horizon}
                for world in config.worlds
            },
            "before": {env: report.as_dict() for env, report in before.items()},
            "after": {env: report.as_dict() for env, report in after.items()},
        }
    first, last = (next(iter(reports.values()), None) for reports in (before, after))
    return shared | {
        "seed": config.seed,
        "env": config.env,
        "eval_split": config.eval_split,
        "eval_horizon": config.fixed_eval_horizon,
        "before": first.as_dict() if first else None,
        "after": last.as_dict() if last else None,
    }


def _seconds(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return round(sum(row[name] for row in rows), 1)


def success_table(reports: Reports, title: str = "") -> UncutTable:
    """Success and mean turns by category, with two columns per report."""
    grid = category_grid(reports)
    return (replace(grid, title=title) if title else grid).as_table()


def last_words(config: RLConfig, store: RunStore) -> list[str]:
    """How many episodes were lost, and how many turns were cut, if any and many."""
    rows, _ = store.metrics()
    cuts = warn_of_cuts(_cut_turns(rows), config.turn_max_tokens)
    found = [_lost_episodes(rows), cuts and f"In training {cuts}."]
    return [f"[yellow]{words}[/]" for words in found if words]


def _cut_turns(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of cut turns in all steps; None if no step tells of them."""
    known = [row for row in rows if row.get("cut_turns") is not None and row["turns"]]
    turns = sum(row["turns"] for row in known)
    return sum(row["cut_turns"] * row["turns"] for row in known) / turns if known else None


def _lost_episodes(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """How many episodes were retried and how many stayed lost; None if none was retried."""
    retried, lost = (int(sum(row[name] for row in rows)) for name in ("retried", "lost"))
    if not retried:
        return None
    return (
        f"{retried} episodes were retried; {lost} of them remained lost and are excluded from loss "
        "and baseline."
    )


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
        values = [row[f"success/{world.env}"] for row in evaluated]
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


def next_commands(config: RLConfig, store: RunStore) -> list[tuple[str, str]]:
    """(command, purpose) of the suggested commands after RL."""
    run, world = store.path, config.worlds[0]
    success = (store.read_json("summary.json") or {}).get("success_after")
    is_hopeless = success is not None and success < WEAK
    return [
        *([(f"agentgym view {run}", _NOTHING_TO_LEARN)] if is_hopeless else []),
        *(
            (
                _eval_command(
                    _in_world(config, w),
                    w.env,
                    run,
                    w.split if config.eval_after else w.eval_split,
                    w.eval_horizon,
                ),
                "evaluate the trained policy"
                + " on another split" * config.eval_after
                + ", with the wrappers of the training" * bool(w.wrappers),
            )
            for w in config.worlds
        ),
        (
            f"agentgym eval --env {world.env} --policy expert --split {world.eval_split} "
            f"--horizon {world.eval_horizon}",
            "evaluate the oracle",
        ),
        *_further(config, store),
    ]


def _further(config: RLConfig, store: RunStore) -> list[tuple[str, str]]:
    """The command that trains further; none where it would be refused."""
    has_objects = (store.read_json("run.json") or {}).get("objects")
    if has_objects or last_checkpoint(store.checkpoints) is None:
        return []
    command = f"agentgym train --resume {store.path} --steps {2 * config.steps}"
    return [
        (
            command + trust_option(config.as_dict()),
            "train it further, to twice as many steps",
        )
    ]


def _in_world(config: RLConfig, world: RLWorld) -> RLConfig:
    """The config with the prompt and the wrappers of one of its environments."""
    return replace(config, instruction=world.instruction, wrappers=world.wrappers or [])


def _split_of_data(config: SFTConfig | DPOConfig) -> str:
    """The split of the first run whose episodes were learned from; otherwise `train`."""
    for source in config.data:
        run = RunStore(user_path(source)).read_json("run.json") or {}
        settings = run.get("config")
        if isinstance(settings, dict) and "split" in settings:
            return str(settings["split"])
    return "train"


def next_learning_commands(config: SFTConfig | DPOConfig, store: RunStore) -> list[tuple[str, str]]:
    """(command, purpose) of the suggested commands after SFT or DPO."""
    run, env = store.path, config.env or "ENV"
    results = store.read_json("summary.json") or {}
    success = results.get("success_after")
    if success is not None and success < WEAK:
        return _after_a_weak_result(config, store, results)
    file = _rl_config(env)
    written = shlex.quote(str(file or "rl.yaml"))
    return [
        (
            _eval_command(config, env, run, config.eval_split, config.fixed_eval_horizon),
            "evaluate the policy",
        ),
        (
            f"agentgym collect --env {env} --policy {run}/model --split {_split_of_data(config)} "
            f"--out {run}/model-episodes{policy_options(config, run)}",
            "collect its episodes: pairs for method: dpo, or more data for method: sft",
        ),
        (
            f"agentgym train {written} --model {run}/model --output_dir {run}-rl",
            "continue with RL"
            if file
            else f"continue with RL: write rl.yaml with env: {env} (examples/train has some)",
        ),
    ]


def _after_a_weak_result(
    config: SFTConfig | DPOConfig, store: RunStore, results: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """What to do about a policy that solves next to nothing: RL would learn from no success."""
    run, cut = store.path, (results.get("after") or {}).get("cut_turns") or 0.0
    longer = f"agentgym train --resume {run} --steps {2 * max(1, results['steps'] or 1)}"
    return [
        (
            f"agentgym view {run}",
            f"read five failures: what does the policy write? {cut:.0%} of its turns were cut at "
            f"turn_max_tokens={config.turn_max_tokens}",
        ),
        (
            longer + trust_option(config.as_dict()),
            "train longer, to twice as many steps, or collect more episodes. Begin RL when some "
            "tasks are solved",
        ),
    ]


def _rl_config(env: str) -> Path | None:
    """A config in the working directory that trains by RL in an environment, the first by name."""
    for path in sorted(Path().glob("*.y*ml")):
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue  # it is not a config of ours
        if not isinstance(values, dict):
            continue
        if (values.get("method", DEFAULT), values.get("env")) == ("rl", env):
            return path
    return None


def _eval_command(config: RunConfig, env: str, run: Path, split: str, horizon: int) -> str:
    return (
        f"agentgym eval --env {env} --policy {run}/model --split {split} "
        f"--horizon {horizon}{policy_options(config, run)}"
    )


def policy_options(config: RunConfig, run: Path) -> str:
    """The options of `agentgym eval` and `collect` for the policy of a run."""
    words = []
    plain = PolicyConfig()
    if any(getattr(config, name) != getattr(plain, name) for name in SETTINGS_OF_A_RUN):
        words += ["--settings-of", shlex.quote(str(run))]
    if not is_known("agent", config.agent):
        words += ["--agent", shlex.quote(config.agent)]
    for wrapper in config.wrappers:
        words += [
            "--wrapper",
            wrapper if isinstance(wrapper, str) else shlex.quote(json.dumps(wrapper)),
        ]
    return "".join(f" {word}" for word in words)


def conclude_evolution(config: AgentEvolConfig, store: RunStore, console: Console) -> None:
    """Write the summary of AgentEvol, and show its table and the next command."""
    rows, _ = store.metrics()
    before = store.read_json("eval_before.json")
    base = {env: report["success"] for env, report in (before or {}).items()}
    console.print(_iterations_table(config, base, rows))
    picture = plot_iterations(config, base, rows, store.path)
    summary = {
        "method": config.method,
        "success_before": fmean(base.values()) if base else None,
        "success_after": rows[-1].get("success") if rows else None,
        "train_seconds": _seconds(rows, "train_seconds"),
        "seed": config.seed,
        "envs": [world.env for world in config.worlds],
        "before": before,
        "iterations": rows,
    }
    store.write_json("summary.json", summary)
    world = config.worlds[0]
    horizon = config.eval_horizon_of(world)
    command = _eval_command(config, world.env, store.path, world.split, horizon)
    show_end(store, picture, [(command, "evaluate the policy on another split")], console)


def _iterations_table(
    config: AgentEvolConfig, base: Mapping[str, float], rows: Sequence[Mapping[str, Any]]
) -> UncutTable:
    envs = [world.env for world in config.worlds]
    table = Table(title="AgentEvol: success on held-out tasks")
    for name in ("iteration", "explored", "selected", "learned", *envs):
        table.add_column(name, justify="right")
    if base:
        table.add_row("base", "", "", "", *(f"{base[env]:.2f}" for env in envs))
    for row in rows:
        counts = (f"{row[name]:.0f}" for name in ("step", "explored", "kept", "rows"))
        successes = (f"{row.get(f'success/{env}', float('nan')):.2f}" for env in envs)
        table.add_row(*counts, *successes)
    return UncutTable(table)


def show_end(
    store: RunStore, picture: Path | None, commands: Sequence[tuple[str, str]], console: Console
) -> None:
    """Show where the results are, and the suggested commands."""
    console.print(f"Summary: {store.path}/summary.json   Curves: {picture}", soft_wrap=True)
    console.print("Next steps:")
    for command, purpose in commands:
        console.print(f"  [bold]{command}[/]\n      {purpose}", soft_wrap=True, highlight=False)
