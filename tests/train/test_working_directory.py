"""The documented commands in the folders where they are documented, from the console script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_env.run_store import RunStore

CONSOLE_SCRIPT = Path(sys.executable).with_name("agentgym")
LEARNING = Path(__file__).parents[2] / "examples" / "learning"
SHORT = ["steps=1", "prompts_per_step=2", "num_generations=2", "horizon=[2]"]
SHORT += ["eval.before=false", "eval.after=false"]
MINE = """
from dataclasses import dataclass
from agentgym_train.rollout.agent import Agent
from agentgym_train.algorithms import Algorithm

class Shouting(Agent):
    def begin(self, observation):
        return super().begin(observation.upper())

@dataclass(frozen=True)
class Even(Algorithm):
    share: float = 1.0
    def advantages(self, batch):
        return self.share * batch.loss_mask
"""


def agentgym(folder: Path, *words: object) -> str:
    """What the console script says in a folder, which nothing but `cd` makes known."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [CONSOLE_SCRIPT, *map(str, words)], cwd=folder, text=True, timeout=500,
        env={**environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of one's own, with files that are called as installed modules are."""
    for name in ("courier.py", "courier.yaml"):
        shutil.copy(LEARNING / name, tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    for taken in ("statistics", "yaml", "accelerate", "agentgym_train"):
        (tmp_path / f"{taken}.py").write_text("raise SystemExit('the working directory shadows')")
    return tmp_path


@pytest.mark.slow
def test_the_run_of_the_learning_example_starts_as_its_readme_says(tmp_path):
    agentgym(LEARNING, "train", "courier.yaml", *SHORT, f"output_dir={tmp_path}/run")
    store = RunStore.open(tmp_path / "run")
    assert [row["step"] for row in store.metrics()[0]] == [1]
    assert {episode.env for episode in store.trajectories("train")[0]} == {"courier:Courier"}


@pytest.mark.slow
def test_names_on_the_command_line_are_found_in_every_process_of_a_run(folder):
    words = ["env=courier:Courier", "--agent", "mine:Shouting", "algorithm=mine:Even"]
    words += ["algorithm.share=0.5", f"model={LEARNING}/warm_policy", "output_dir=run"]
    agentgym(folder, "train", "courier.yaml", *SHORT, *words, "--num-processes", "2")
    store = RunStore.open(folder / "run")
    config = store.read_json("run.json")["config"]
    algorithm = {"type": "mine:Even", "share": 0.5}
    assert (config["agent"], config["algorithm"]) == ("mine:Shouting", algorithm)
    assert len(store.trajectories("train")[0]) == 4
    assert [row["step"] for row in store.metrics()[0]] == [1]


@pytest.mark.slow
def test_the_environment_is_found_by_eval(folder):
    words = ["--policy", "expert", "--limit", 1, "--out", "report", "--horizon", "40"]
    agentgym(folder, "eval", "--env", "courier:Courier", *words)
    report = json.loads((folder / "report" / "report.json").read_text())
    assert report["reports"]["expert"]["success"] == 1.0
