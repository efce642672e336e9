"""The end of a run: summary.json, the result table, and the commands that are suggested."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from agentgym_env.printable import UncutTable
from agentgym_env.run_store import RunStore, last_step
from agentgym_train.config.learn import AgentEvolConfig, DPOConfig, SFTConfig
from agentgym_train.config.policy import HORIZON, SETTINGS_OF_A_RUN, PolicyConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.trust import is_known, trust_option
from agentgym_train.config.worlds import World, WorldEvalSettings
from agentgym_train.evaluation.report import Reports, warn_of_cuts
from agentgym_train.runs.curves import Panel, plot
from agentgym_train.training.checkpoints import last_checkpoint

WEAK = 0.05
"""Success below which the suggestion is to find out why."""


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


def last_words(config: RLConfig, store: RunStore) -> list[str]:
    """How many episodes were lost, and how many turns were cut, if any and many."""
    rows, _ = store.metrics()
    cuts = warn_of_cuts(_cut_turns(rows), config.turn_max_tokens)
    found = [_lost_episodes(rows), cuts and f"In training {cuts}."]
    return [f"[yellow]{words}[/]" for words in found if words]


def conclude_evolution(config: AgentEvolConfig, store: RunStore, console: Console) -> None:
    """Write the summary of AgentEvol, and show its table and the next command."""
    rows, _ = store.metrics()
    envs = [world.env for world in config.worlds]
    first = RunStore(store.path / f"iteration-{rows[0]['step']}")
    before = first.read_json("eval_before.json")
    base = {env: r["success"] for env, r in reports_by_env(before, envs).items()}
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
        "before": before,
        "iterations": rows,
    }
    if before:
        store.write_json("eval_before.json", before)
    store.write_json("summary.json", summary)
    show_end(store, picture, next_commands(config, store), console)


def reports_by_env(found: Any, envs: Sequence[str]) -> dict[str, Any]:
    """Stored reports by environment; of one alone it is stored without its id."""
    if not found:
        return {}
    return {envs[0]: found} if len(envs) == 1 else dict(found)


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


def _seconds(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return round(sum(row[name] for row in rows), 1)


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


def _iterations_table(
    envs: Sequence[str], base: Mapping[str, float], rows: Sequence[Mapping[str, Any]]
) -> UncutTable:
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
    results = store.read_json("summary.json") or {}
    success = results.get("success_after")
    if success is not None and success < WEAK:
        return [_read_failures(config, store, results), *_further(config, store)]
    was_evaluated = success is not None
    return [
        *(_evaluate(config, world, store.path, was_evaluated) for world in _worlds(config)),
        *_further(config, store),
        *([_reinforce(config, store.path)] if isinstance(config, SFTConfig | DPOConfig) else []),
    ]


def policy_options(config: RunConfig, run: Path) -> str:
    """The options of `agentgym eval` and `collect` for the policy of a run."""
    words = []
    plain = PolicyConfig()
    if any(getattr(config, name) != getattr(plain, name) for name in SETTINGS_OF_A_RUN):
        words += ["--settings-of", shlex.quote(str(run))]
    if not is_known("agent", config.agent):
        agent = config.agent if isinstance(config.agent, str) else json.dumps(config.agent)
        words += ["--agent", shlex.quote(agent)]
    for wrapper in config.wrappers:
        words += [
            "--wrapper",
            wrapper if isinstance(wrapper, str) else shlex.quote(json.dumps(wrapper)),
        ]
    return "".join(f" {word}" for word in words)


def _evaluate(config: RunConfig, world: World, run: Path, was_evaluated: bool) -> tuple[str, str]:
    """The command that evaluates the policy in an environment, after training on a new split."""
    split = world.split if world.split and was_evaluated else world.eval.split
    own = replace(config, instruction=world.instruction, wrappers=world.wrappers or [])
    purpose = "evaluate the trained policy"
    purpose += " on another split" * (split != world.eval.split)
    return (
        f"agentgym eval --env {world.env} --policy {run}/model --split {split} "
        f"--horizon {world.eval.horizon}{policy_options(own, run)}",
        purpose + ", with the wrappers of the training" * bool(world.wrappers),
    )


def _further(config: RunConfig, store: RunStore) -> list[tuple[str, str]]:
    """The command that trains further; none where it would be rejected."""
    metadata = store.read_json("run.json") or {}
    if metadata.get("objects") or last_checkpoint(store.checkpoints) is None:
        return []
    steps = (store.read_json("summary.json") or {}).get("steps")
    if isinstance(config, RLConfig):
        steps = config.steps
    command = f"agentgym train --resume {store.path} --steps {2 * max(1, steps or 1)}"
    return [
        (
            command + trust_option(config.as_dict()),
            "train it further, to twice as many steps",
        )
    ]


def _reinforce(config: RunConfig, run: Path) -> tuple[str, str]:
    """The command that continues with RL, whose config the user writes."""
    entries = ", ".join(f"{{env: {world.env}}}" for world in _worlds(config))
    return (
        f"agentgym train rl.yaml --model {run}/model --output_dir {run}-rl",
        f"continue with RL: write rl.yaml with envs: [{entries}] (examples/train has some)",
    )


def _read_failures(
    config: RunConfig, store: RunStore, results: Mapping[str, Any]
) -> tuple[str, str]:
    """What to do about a policy that solves next to nothing: RL would learn from no success."""
    reports = reports_by_env(results.get("after"), [world.env for world in _worlds(config)])
    cuts = [report["cut_turns"] or 0.0 for report in reports.values()]
    cut = fmean(cuts) if cuts else 0.0
    return (
        f"agentgym view {store.path}",
        f"read five failures: what does the policy write? {cut:.0%} of its turns were cut at "
        f"turn_max_tokens={config.turn_max_tokens}. Where next to nothing is solved, RL has no "
        "success to learn from: begin with a policy that solves some tasks, such as one after SFT",
    )


def _worlds(config: RunConfig) -> list[World]:
    """The environments of a run; without one, the user completes the command."""
    own = WorldEvalSettings(split=config.eval.split, horizon=config.eval.horizon or HORIZON)
    return config.worlds or [World(env="ENV", eval=own)]
