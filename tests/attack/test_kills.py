"""A whole run that is killed at random moments, from its start to its last byte."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from agentgym_env.run_store import RunStore
from tests.train.command import Command, finish
from tests.train.small import save_tiny_policy

KILLS = 20


def write_config(folder: Path, run: Path) -> Path:
    """Short steps, with a checkpoint after each second one and two evaluations."""
    values = {
        "model": save_tiny_policy(folder / "policy"),
        "env": "agentgym/TextCraft-v0",
        "output_dir": str(run),
        "horizon": {"type": "stepwise", "turns": [2, 3], "every": 3},
        "turn_max_tokens": 6,
        "max_tokens": 900,
        "instruction": "",
        "prompts_per_step": 2,
        "num_generations": 2,
        "steps": 7,
        "learning_rate": 1e-3,
        "save_every": 2,
        "eval": {"horizon": 2, "per_category": 4},
        # One turn at a time is computed alike to the last bit; a batch's rounding depends on
        # what else is in it.
        "engine": {"type": "hf", "max_batch": 1},
    }
    path = folder / f"{run.name}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def started(config: Path, run: Path) -> Command:
    """The run: resumed if there is one."""
    if (run / "run.json").is_file():
        return Command("train", "--resume", run)
    return Command("train", config)


def results(run: Path) -> tuple[dict, list[dict], dict[str, list]]:
    """What a run has found, without what is measured with a clock."""
    summary = json.loads((run / "summary.json").read_text())
    store = RunStore.open(run)
    rows, broken = store.metrics()
    names = ("step", "reward", "success", "horizon", "turns", "env_steps", "loss", "grad_norm")
    episodes = {}
    for name in ("train", "eval_before", "eval_after"):
        found, damaged = store.trajectories(name)
        broken += damaged
        episodes[name] = sorted(
            (t.step or 0, t.group or 0, t.task, t.seed, tuple(turn.action for turn in t.turns))
            for t in found
        )
    assert not broken
    # The policy is named by its folder.
    scores = {name: summary[name] | {"policy": ""} for name in ("before", "after")}
    return scores, [{n: row.get(n) for n in names} for row in rows], episodes


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_run_killed_twenty_times_equals_one_that_was_not(tmp_path):
    chance = random.Random(22)
    unbroken = tmp_path / "unbroken"
    finish(Command("envs"))  # the libraries are loaded once, and that is not measured
    began = time.monotonic()
    status, output = finish(started(write_config(tmp_path, unbroken), unbroken))
    assert status == 0, output
    whole_s = time.monotonic() - began
    wanted = results(unbroken)
    weights = load_file(unbroken / "model" / "model.safetensors")

    kills, runs = 0, 0
    while kills < KILLS:
        runs += 1
        run = tmp_path / f"run{runs}"
        config = write_config(tmp_path, run)
        moments = []
        while True:
            process = started(config, run)
            try:
                process.wait(chance.uniform(0.2, 1) * whole_s if len(moments) < 4 else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                moments.append(reached(run))
                kills += 1
            else:
                output = process.communicate()[0]
                assert process.returncode == 0, output
                break
        sys.stdout.write(f"run {runs} was killed {len(moments)} times: {', '.join(moments)}\n")
        assert results(run) == wanted
        for name, weight in load_file(run / "model" / "model.safetensors").items():
            assert weight.equal(weights[name]), name
        rows = exported(run, tmp_path / f"{run.name}.jsonl")
        assert len(rows) == len(set(rows)) == len(wanted[2]["train"])
    sys.stdout.write(f"{kills} kills of {runs} runs; a whole one takes {whole_s:.0f} s\n")


def reached(run: Path) -> str:
    """How far a run had come."""
    if not (run / "run.json").is_file():
        return "before its folder was made"
    store = RunStore.open(run)
    rows, _ = store.metrics()
    after, _ = store.trajectories("eval_after")
    before, _ = store.trajectories("eval_before")
    return f"step {len(rows)}, evaluations {len(before)} and {len(after)}"


def exported(run: Path, out: Path) -> list[str]:
    status, output = finish(Command("export", run, "--out", out, "--format", "trajectories"))
    assert status == 0, output
    return out.read_text().splitlines()
