"""Test-time scaling: success over the evaluation horizon and pass@k, before and after training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis import read_cells
from cell import by_task, played
from rich.console import Console

from agentgym_env.run_store import RunStore
from agentgym_train.config.methods import RLConfig, config_from
from agentgym_train.evaluation.report import EvalReport, pass_at_k
from agentgym_train.rollout.policy import make_policy
from agentgym_train.runs.preflight import world_of

HORIZONS = (2, 4, 6, 10, 14, 20, 28, 38, 48)
SAMPLES = 64
PER_CATEGORY = 8
"""Tasks of each category."""
WORLD = "tower"
SEEDS = 3
BEFORE = "before training"


def scale(out: Path, console: Console, *, trial: bool = False) -> None:
    """Evaluate the start policy and the policies of part `main`; what is there is kept.

    A policy is evaluated once, at the longest horizon: an episode's first turns do not depend on
    it. Three seeds of each schedule.
    """
    cells = [c for c in read_cells(out) if (c["part"], c["world"]) == ("main", WORLD)]
    seeds = sorted({cell["seed"] for cell in cells})[:SEEDS]
    chosen = [cell for cell in cells if cell["seed"] in seeds and cell["schedule"] != "control"]
    if not chosen:
        console.print("Part scaling needs policies of part main; there are none yet.")
        return
    path = out / "scaling.json"
    done: dict[str, Any] = {}
    if path.is_file():
        done = {row["name"]: row for row in json.loads(path.read_text())["policies"]}
    first = _config(out, chosen[0]["name"])
    work = [(BEFORE, BEFORE, seeds[0], first.model)]
    work += [(c["name"], c["schedule"], c["seed"], str(out / c["name"] / "model")) for c in chosen]
    for name, schedule, seed, model in work:
        if name in done:
            continue
        config = replace(
            first,
            model=model,
            seed=seed,
            eval_per_category=1 if trial else PER_CATEGORY,
        )
        samples = 2 if trial else SAMPLES
        report, success = _evaluated(config, samples)
        sampled = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples]
        done[name] = {
            "name": name,
            "schedule": schedule,
            "seed": seed,
            "tasks": report.tasks,
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


def _evaluated(config: RLConfig, samples: int) -> tuple[EvalReport, dict[int, dict[str, float]]]:
    """(the report, success of each task within each horizon)."""
    with world_of(config) as runner:
        policy = make_policy(config, env_instruction=runner.card.instruction)
        report, episodes = played(policy, runner, config.eval_split, max(HORIZONS), samples, config)
        runner.run(policy.engine.close())
    return report, {horizon: by_task(episodes, horizon) for horizon in HORIZONS}


def _config(out: Path, name: str) -> RLConfig:
    values = (RunStore.open(out / name).read_json("run.json") or {})["config"]
    return config_from(values)
