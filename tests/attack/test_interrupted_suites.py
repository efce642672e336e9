"""`eval --suite` that is interrupted at random moments, and folders that a killed start leaves."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgym_env.run_store import RunStore
from tests.train.command import Command, finish

INTERRUPTIONS = 8
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def suite(out: Path) -> Command:
    words = ("--policy", "expert", "--policy", "random", "--limit", 3, "--seed", 5)
    return Command("eval", "--suite", "starter:suites/paper.yaml", *words, "--out", out)


def results(out: Path) -> tuple[dict, dict]:
    """The figures, and every episode's actions and reward."""
    figures = json.loads((out / "suite.json").read_text())
    episodes = {}
    for file in sorted(out.glob("*/trajectories/*.jsonl")):
        found, _ = RunStore(file.parent.parent).trajectories(file.stem)
        rows = [(t.task, t.seed, t.reward, *(turn.action for turn in t.turns)) for t in found]
        assert len(rows) == len(set(rows)), "an episode was played twice"
        episodes[f"{file.parent.parent.name}/{file.name}"] = sorted(rows)
    return figures, episodes


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_suite_that_is_interrupted_at_random_equals_one_that_was_not(tmp_path):
    chance = random.Random(49)
    finish(Command("envs"))  # the libraries are loaded once, and that is not measured
    began = time.monotonic()
    status, said = finish(suite(tmp_path / "unbroken"))
    assert status == 0, said
    whole_s = time.monotonic() - began
    broken, moments = tmp_path / "broken", []
    while True:
        process = suite(broken)
        wait_s = chance.uniform(0, whole_s / 2) if len(moments) < INTERRUPTIONS else None
        try:
            process.wait(wait_s)
            break
        except subprocess.TimeoutExpired:
            number = chance.choice(SIGNALS)
            process.send_signal(number)
            process.wait(120)
            moments.append(f"{number.name} after {wait_s:.1f} s")
    assert process.returncode == 0, process.communicate()[0]
    assert results(broken) == results(tmp_path / "unbroken")
    sys.stdout.write(f"a suite with {len(moments)} interruptions equals the unbroken one: ")
    sys.stdout.write(f"{', '.join(moments)}\n")


LEFT = {"trajectories/": None, "run.json.partial": '{"kin'}


@pytest.mark.parametrize(
    "left", [name if name.startswith("run") else pytest.param(name, marks=pytest.mark.slow)
             for name in LEFT],
)  # fmt: skip
def test_a_start_that_was_killed_does_not_block_its_folder(tmp_path, left):
    shared = ("--env", "textcraft", "--policy", "expert")
    commands = {
        "eval": ("eval", *shared, "--limit", 1),
        "collect": ("collect", *shared, "--n", 1),
    }
    for name in ("eval", "collect"):
        out = tmp_path / name
        out.mkdir()
        if LEFT[left] is None:
            (out / left).mkdir()
        else:
            (out / left).write_text(LEFT[left])
        status, said = finish(Command(*commands[name], "--out", out))
        assert status == 0, said
        assert not list(tmp_path.glob("*.old-*")), "moved aside"
    sys.stdout.write(f"folders in which a killed start left {left}: used again\n")
