"""Test-time scaling: success over the evaluation horizon and pass@k, before and after training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis import read_cells
from cell import by_task
from rich.console import Console

from agentgym_env.run_store import RunStore
from agentgym_train.config.rl import RLConfig
from agentgym_train.evaluation.plan import eval_starts
from agentgym_train.evaluation.statistics import pass_at_k
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.worlds import open_worlds

HORIZONS = (2, 4, 6, 10, 14, 20, 26, 32, 40, 48)
SAMPLES = 64
PER_HEIGHT = 2
"""Test tasks of each height of the towers."""
WORLD = "tower"
SEEDS = 3
BEFORE = "before training"


def scale(out: Path, first: RLConfig, console: Console, *, trial: bool = False) -> bool:
    """Evaluate the start policy and the policies of part `main`; what is there is kept.

    A policy is evaluated once, at the longest horizon: an episode's first turns do not depend on
    it. Three seeds of each schedule. `first` is the config of a cell of part `main`. Returns
    whether anything was evaluated.
    """
    cells = [c for c in read_cells(out) if (c["part"], c["world"]) == ("main", WORLD)]
    seeds = sorted({cell["seed"] for cell in cells})[:SEEDS]
    chosen = [cell for cell in cells if cell["seed"] in seeds and cell["schedule"] != "control"]
    if not chosen:
        console.print("Part scaling needs policies of part main; there are none yet.")
        return False
    samples = 2 if trial else SAMPLES
    path = out / "scaling.json"
    rows = (RunStore(out).read_json(path.name) or {}).get("policies", [])
    done: dict[str, Any] = {row["name"]: row for row in rows if row["samples"] == samples}
    work = [(BEFORE, BEFORE, seeds[0], first.model)]
    work += [(c["name"], c["schedule"], c["seed"], str(out / c["name"] / "model")) for c in chosen]
    known = len(done)
    for name, schedule, seed, model in work:
        if name in done:
            continue
        if name != BEFORE and not Path(model).is_dir():
            console.print(f"scaling, {name}: skipped, its policy is not here", soft_wrap=True)
            continue
        config = replace(first, model=model, seed=seed)
        success = _evaluated(config, samples, 1 if trial else PER_HEIGHT)
        sampled = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples]
        done[name] = {
            "name": name,
            "schedule": schedule,
            "seed": seed,
            "tasks": success[max(HORIZONS)],
            "samples": samples,
            "success": {str(h): fmean(success[h].values()) for h in HORIZONS},
            "pass_at_k": {
                str(k): fmean(
                    pass_at_k(samples, round(rate * samples), k)
                    for rate in success[max(HORIZONS)].values()
                )
                for k in sampled
            },
        }
        RunStore(out).write_json(path.name, {"horizons": HORIZONS, "policies": [*done.values()]})
        console.print(f"scaling, {name}: pass@1 {done[name]['pass_at_k']['1']:.3f}", soft_wrap=True)
    return len(done) > known


def _evaluated(config: RLConfig, samples: int, per_height: int) -> dict[int, dict[str, float]]:
    """The success of each task within each horizon."""
    with open_worlds(config) as worlds:
        (runner,) = worlds
        policy = make_policy(config, env_instruction=runner.card.instruction)
        chosen = of_each_height(runner.tasks.split(config.eval.split), per_height)
        starts = eval_starts(runner.tasks, config.eval.split, samples, config.seed)
        episodes = runner.collect(
            policy.actors(config.eval.temperature),
            [start for start in starts if start.task in chosen],
            max(HORIZONS),
            instruction=policy.instruction,
        )
        runner.run(policy.engine.close())
    return {horizon: by_task(episodes, horizon) for horizon in HORIZONS}


def of_each_height(tasks: Sequence[str], count: int) -> list[str]:
    """The first `count` towers of each height; a task is named SPLIT-FLOORS-NUMBER."""
    return [task for task in tasks if int(task.rpartition("-")[2]) < count]
