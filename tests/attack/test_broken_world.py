"""A world that breaks in the middle of a run: the run stops and says why, and loses nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from agentgym_env.run_store import RunStore
from tests.train.command import Command, finish
from tests.train.small import save_tiny_policy
from waiting import until

pytestmark = pytest.mark.slow
STEPS = 3
WORLD = '''
import os
import time
from pathlib import Path

from agentgym_env import TaskSet, TextEnv

HERE = Path(__file__).parent


class Breaks(TextEnv):
    """A world of two turns; it does what the file `harm` says."""

    instruction = "Say something."
    tasks = TaskSet({"train": list("abcdef"), "test": ["g"]})
    step_timeout_s = 1.0

    def _reset(self, task):
        self.turns = 0
        return f"Task {task}. Speak."

    def _step(self, action):
        self.turns += 1
        harm = HERE.joinpath("harm").read_text() if HERE.joinpath("harm").exists() else ""
        if harm == "raise":
            raise RuntimeError("the database is gone")
        if harm == "die":
            os._exit(3)
        if harm == "hang":
            time.sleep(600)
        return f"You said {len(action)} characters.", len(action) / 100, self.turns == 2
'''
HARMS = {
    "raise": "the database is gone",
    "die": "environment_lost",
    "hang": "took longer than",
}


def write_config(folder: Path, run: Path) -> Path:
    (folder / "breaks.py").write_text(WORLD)
    values = {
        "model": str(save_tiny_policy(folder / "policy")), "env": "breaks:Breaks",
        "output_dir": str(run), "horizon": 2, "turn_max_tokens": 6, "max_tokens": 300,
        "prompts_per_step": 2, "num_generations": 2, "steps": STEPS, "learning_rate": 1e-3,
        "save_every": 1, "engine": {"type": "hf", "max_batch": 1}, "eval": {"per_category": 0},
    }  # fmt: skip
    path = folder / f"{run.name}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def steps_of(run: Path) -> list[dict]:
    return RunStore.open(run).metrics()[0] if (run / "metrics.jsonl").exists() else []


def weights(run: Path) -> dict:
    return load_file(run / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    run = folder / "run"
    finish(Command("train", write_config(folder, run), cwd=folder))
    return run


@pytest.mark.parametrize("harm", HARMS)
def test_a_run_whose_world_breaks_stops_and_resumes_to_the_same_end(harm, unbroken, tmp_path):
    run = tmp_path / "run"
    training = Command("train", write_config(tmp_path, run), cwd=tmp_path)
    until(lambda: steps_of(run), "no step was done", training)
    (tmp_path / "harm").write_text(harm)
    said = training.communicate(timeout=600)[0]
    done = len(steps_of(run))
    last = said.strip().splitlines()[-1]
    sys.stdout.write(f"a world begins to {harm}: stopped after {done} steps: {last[:160]}\n")
    assert training.returncode != 0 and 1 <= done < STEPS
    assert HARMS[harm] in said and "Traceback" not in said
    (tmp_path / "harm").unlink()
    finish(Command("train", "--resume", run, "--trust", cwd=tmp_path))
    rows, before = steps_of(run), steps_of(unbroken)
    for name in ("step", "reward", "loss", "grad_norm"):
        assert [row.get(name) for row in rows] == [row.get(name) for row in before]
    mine, others = weights(run), weights(unbroken)
    assert all(mine[name].equal(others[name]) for name in others)
    assert json.loads((run / "summary.json").read_text())
