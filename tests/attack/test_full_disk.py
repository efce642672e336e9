"""A disk that is full: one line says so, and after space is freed nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agentgym_env.run_store import RunStore
from tests.train.command import Command, finish

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a file system, and not in every container")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def assert_says_so(status: int, output: str) -> None:
    assert status == 2 and "Traceback" not in output, output
    assert "No space left on device" in output.replace("\n", " ")
    sys.stdout.write(output.strip().splitlines()[-1] + "\n")


def test_a_collection(disk):
    words = ["collect", "--env", "textcraft", "--policy", "expert", "--n", "200", "--out"]
    assert_says_so(*finish(Command(*words, disk / "run")))
    resize(disk, "16m")
    status, output = finish(Command(*words, disk / "run"))
    assert status == 0, output
    episodes, broken = RunStore.open(disk / "run").trajectories("collected")
    assert len(episodes) == len({(e.task, e.seed) for e in episodes}) == 200
    assert len(broken) <= 1, "at most the line that did not fit"


def test_a_training_run(disk, tmp_path):
    values = {
        "env": "textcraft", "model": "starter:textcraft/warm_policy", "horizon": 2, "steps": 3,
        "output_dir": str(disk / "run"), "prompts_per_step": 2, "num_generations": 2,
        "save_every": 1, "eval": {"before": False, "after": False},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    resize(disk, "16m")
    assert_says_so(*finish(Command("train", tmp_path / "config.yaml")))
    resize(disk, "200m")
    status, output = finish(Command("train", "--resume", disk / "run"))
    assert status == 0, output
    assert [row["step"] for row in RunStore.open(disk / "run").metrics()[0]] == [1, 2, 3]
