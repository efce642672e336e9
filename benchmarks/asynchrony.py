"""What `max_policy_age` saves, and what it costs: the time of a step, and the success in the end.

    python benchmarks/asynchrony.py time
    python benchmarks/asynchrony.py success --seeds 5

`time` trains a policy of random weights in the courier. Each step of the environment takes as long
as it must for sampling to take as long as the update, which is measured first. The roads alternate,
and the first steps of each run and the last are left out. `success` trains the courier's and the
tower's policy with each seed, and evaluates them on held-out tasks at a fixed horizon. Finished
runs are kept in runs/asynchrony, and the figures in benchmarks/asynchrony.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.small_models import small_policy

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "asynchrony.json"
RUNS = ROOT / "runs" / "asynchrony"
WORLDS: dict[str, tuple[Path, list[str]]] = {
    "courier": (ROOT / "examples/learning/courier.yaml", []),
    "tower": (
        ROOT / "examples/horizon_lab/tower.yaml",
        ["horizon=14", "eval.horizon=14", "steps=50", "eval.samples=10"],
    ),
}
"""World -> its config, and what is changed in it."""
ARMS: dict[str, tuple[str, list[str], dict[str, int]]] = {
    "0": ("max_policy_age 0", ["max_policy_age=0"], {}),
    "2": ("max_policy_age 2", ["max_policy_age=2"], {}),
    "2t": (
        "max_policy_age 2, importance_sampling token",
        ["max_policy_age=2", "importance_sampling=token"],
        {"courier": 0, "tower": 3},
    ),
}
"""Arm -> its name, what is changed in it, and its seeds, where they are not all."""
ROADS = (("synchronous", 0), ("max_policy_age 1", 1), ("max_policy_age 2", 2))
T_975 = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Degrees of freedom -> 97.5 % quantile of Student's t."""


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["time", "success"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128, help="width of the policy of `time`")
    args = parser.parse_args()
    found = step_times(args.rounds, args.hidden) if args.what == "time" else success(args.seeds)
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    record[args.what] = {
        "command": f"python benchmarks/asynchrony.py {' '.join(sys.argv[1:])}",
        "commit": output_of("git", "rev-parse", "--short", "HEAD"),
        "versions": {name: version(name) for name in ("torch", "transformers", "trl")},
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        **found,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def step_times(rounds: int, hidden: int) -> dict[str, Any]:
    """Medians of the seconds of a step."""
    config, _ = WORLDS["courier"]
    model = RUNS / f"policy-{hidden}"
    tokenizer = AutoTokenizer.from_pretrained(
        config.parent / "warm_policy", trust_remote_code=False
    )
    small_policy(tokenizer, hidden=hidden, heads=hidden // 32).save_pretrained(model)
    tokenizer.save_pretrained(model)
    shared = [
        f"model={model}", "env=slow_courier:SlowCourier", "prompts_per_step=4", "steps=8",
        "epochs_per_rollout=2", "eval.before=false", "eval.after=false", "save_every=100",
    ]  # fmt: skip
    rows: dict[str, list[dict[str, float]]] = {}
    delay_s = 0.0
    for name, age in (("without delay", 0), *(ROADS * rounds)):
        path = RUNS / f"time-{hidden}-{len(rows.get(name, ()))}-{name.replace(' ', '-')}"
        words = [*shared, f"max_policy_age={age}", f"env_kwargs={{delay_s: {delay_s}}}"]
        train(config, path, words)
        rows.setdefault(name, []).extend(metrics(path)[2:-1])  # nothing runs beside the last
        if name == "without delay":
            of = rows[name]
            sampling, update = median(of, sampling_s), median(of, update_s)
            delay_s = round((update - sampling) / median(of, lambda row: row["env_steps"]), 4)
        print(name, median(rows[name], lambda row: row["seconds"]), flush=True)
    table = {
        name: {
            "step_s": round(median(of, lambda row: row["seconds"]), 2),
            "waited_s": round(median(of, sampling_s), 2),
            "staleness": round(statistics.mean(row["staleness"] for row in of), 2),
            "dropped": sum(row["dropped"] for row in of),
            "steps": len(of),
        }
        for name, of in rows.items()
    }
    base = rows["synchronous"]
    for name, of in rows.items():
        ratio = median(of, lambda row: row["seconds"]) / median(base, lambda row: row["seconds"])
        table[name]["of_synchronous"] = round(ratio, 3)
    return {
        "delay_s": delay_s,
        "sampling_of_update": round(median(base, sampling_s) / median(base, update_s), 2),
        "roads": table,
    }


def median(rows: list[dict[str, float]], of: Callable[[dict[str, float]], float]) -> float:
    """The median of a figure of each step."""
    return statistics.median(map(of, rows))


def sampling_s(row: dict[str, float]) -> float:
    """The seconds in which a step waited for its episodes."""
    return row["rollout_seconds"]


def update_s(row: dict[str, float]) -> float:
    """The other seconds of a step."""
    return row["seconds"] - row["rollout_seconds"]


def success(seeds: int) -> dict[str, Any]:
    """Success on held-out tasks by world and arm, and the differences by seed."""
    found: dict[str, Any] = {}
    for seed in range(seeds):
        for world, (config, changes) in WORLDS.items():
            for arm, (name, words, most) in ARMS.items():
                if seed >= most.get(world, seeds):
                    continue
                path = RUNS / f"{world}-{arm}-{seed}"
                before = "eval.before=true" if arm == "0" and seed == 0 else "eval.before=false"
                train(config, path, [*changes, before, f"seed={seed}", *words])
                rows, summary = metrics(path), json.loads((path / "summary.json").read_text())
                of = found.setdefault(world, {}).setdefault(name, {})
                of.setdefault("success", []).append(round(summary["success_after"], 4))
                of.setdefault("staleness", []).append(mean(rows, "staleness"))
                of.setdefault("dropped_per_step", []).append(mean(rows, "dropped"))
                if summary.get("success_before") is not None:
                    found[world]["before"] = round(summary["success_before"], 4)
                print(path.name, of["success"][-1], of["staleness"][-1], flush=True)
    base = ARMS["0"][0]
    for of in found.values():
        for name, own in of.items():
            if name not in (base, "before"):
                pairs = zip(own["success"], of[base]["success"], strict=False)
                gaps = [a - b for a, b in pairs]
                half = T_975[len(gaps) - 1] * statistics.stdev(gaps) / math.sqrt(len(gaps))
                own["minus_synchronous"] = round(statistics.mean(gaps), 4)
                own["interval_half_width"] = round(half, 4)
    return {"seeds": seeds, "worlds": found}


def train(config: Path, path: Path, words: list[str]) -> None:
    """Train a run, unless it is complete."""
    if (path / "summary.json").is_file():
        return
    search = os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search}
    command = [sys.executable, "-m", "agentgym_train", config.name, f"output_dir={path}", *words]
    subprocess.run(command, cwd=config.parent, env=env, check=True, stdout=subprocess.DEVNULL)


def metrics(path: Path) -> list[dict[str, float]]:
    """The metrics of each step."""
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def mean(rows: list[dict[str, float]], name: str) -> float:
    """The mean of a metric."""
    return round(statistics.mean(row[name] for row in rows), 3)


def output_of(*words: str) -> str:
    """The output of a command."""
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT).stdout.strip()


if __name__ == "__main__":
    main()
