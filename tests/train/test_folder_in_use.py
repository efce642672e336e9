"""Two programs never write to one folder: the second is rejected and changes nothing."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agentgym_env.launch import child_environment
from agentgym_env.run_lock import LOCK_FILE
from agentgym_env.run_store import RunStore
from tests.train.command import MAIN, Command, finish
from tests.train.test_fast_failure import refusal
from tests.train.test_last_step import write_evolve
from tests.train.test_launching import ROOT
from tests.train.test_run import wait_for, write_config

CHANGES = {"eval": {"before": False, "after": False}, "steps": 3, "save_every": 1}


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder, with the time of its last change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def in_use(folder: Path, pid: int, option: str = "output_dir=FOLDER") -> str:
    return (
        f"error: {folder} is in use by process {pid} on host {platform.node()}; wait until it ends "
        f"or stop it, or choose another folder with {option}"
    )


@pytest.fixture
def running() -> Iterator[Callable[..., Command]]:
    """Starts commands and stops each, with SIGSTOP, as soon as a condition is true."""
    started: list[Command] = []

    def start(condition: Callable[[], bool], *words: object, cwd: Path | None = None) -> Command:
        process = Command(*words, cwd=cwd)
        started.append(process)
        wait_for(condition, process)
        process.send_signal(signal.SIGSTOP)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rl", "evolve"])
def test_a_second_trainer_is_rejected_at_once_and_changes_nothing(tmp_path, running, method):
    config = write_config(tmp_path, **CHANGES) if method == "rl" else write_evolve(tmp_path)
    run = tmp_path / "run"
    first = running(lambda: any(run.rglob("metrics.jsonl")), "train", config)
    before = snapshot(tmp_path)
    assert json.loads((run / LOCK_FILE).read_text())["pid"] == first.pid
    for words in ([config], ["--resume", run], [config, "--num-processes", 2]):
        # Rejected before torch is loaded: `refusal` sees to that.
        said = refusal(*words)
        assert f"error: {said}".strip() == in_use(run, first.pid)
    assert snapshot(tmp_path) == before
    first.send_signal(signal.SIGCONT)
    status, output = finish(first)
    assert status == 0, output
    assert not list(tmp_path.rglob(LOCK_FILE))


@pytest.mark.slow
def test_of_two_trainers_started_together_one_runs_as_if_it_were_alone(tmp_path):
    config = write_config(tmp_path, **CHANGES)
    trainers = [Command("train", config) for _ in "12"]
    outcomes = sorted(finish(trainer) for trainer in trainers)
    assert [status for status, _ in outcomes] == [0, 2], outcomes
    assert "is in use by process" in outcomes[1][1] and "Traceback" not in outcomes[1][1]
    rows, _ = RunStore.open(tmp_path / "run").metrics()
    episodes, _ = RunStore.open(tmp_path / "run").trajectories("train")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == len(rows) == 3
    assert len(episodes) == 3 * 2 * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "policy", "run"]


@pytest.mark.slow
def test_a_killed_trainers_folder_is_taken_over_and_moved_aside_with_its_lock(tmp_path, running):
    config, run = write_config(tmp_path, **CHANGES), tmp_path / "run"
    first = running((run / "checkpoints" / "checkpoint-1" / "horizon.json").exists, "train", config)
    first.kill()
    first.communicate()
    assert json.loads((run / LOCK_FILE).read_text())["pid"] == first.pid, "it left its lock"
    # A new run in the same folder, which Ctrl-C ends after a step; then that one goes on.
    second = Command("train", config)
    wait_for(lambda: (tmp_path / "run.old-1").exists() and (run / "metrics.jsonl").exists(), second)
    assert json.loads((run / LOCK_FILE).read_text())["pid"] == second.pid
    second.send_signal(signal.SIGINT)
    status, output = finish(second)
    assert status == 130, output
    assert not list(tmp_path.rglob(LOCK_FILE)), "Ctrl-C releases it"
    status, output = finish(Command("train", "--resume", run))
    assert status == 0, output
    assert [row["step"] for row in RunStore.open(run).metrics()[0]] == [1, 2, 3]
    assert not list(tmp_path.rglob(LOCK_FILE))


@pytest.mark.slow
def test_of_several_processes_the_first_has_the_lock_and_all_run(tmp_path):
    config, run = write_config(tmp_path, **CHANGES), tmp_path / "run"
    launcher = launched(config)
    try:
        wait_for((run / "checkpoints" / "checkpoint-1" / "horizon.json").exists, launcher)
        pid = json.loads((run / LOCK_FILE).read_text())["pid"]
        ranks = {
            child.pid: child.environ().get("RANK")
            for child in psutil.Process(launcher.pid).children(recursive=True)
            if "RANK" in child.environ()
        }
        psutil.Process(pid).suspend()
        assert ranks[pid] == "0" and "1" in ranks.values()
        status, output = finish(Command("train", "--resume", run))
        assert status == 2 and in_use(run, pid) in output, output
    finally:
        kill_all(launcher)
    assert not (run / "summary.json").exists(), "it was killed in time"
    assert json.loads((run / LOCK_FILE).read_text())["pid"] == pid, "it left its lock"
    launcher = launched("--resume", run)
    output, _ = launcher.communicate(timeout=200)
    assert launcher.returncode == 0 and "Resuming from" in output, output
    assert [row["step"] for row in RunStore.open(run).metrics()[0]] == [1, 2, 3]
    assert not list(tmp_path.rglob(LOCK_FILE))


def launched(*words: object) -> subprocess.Popen[str]:
    """A training run in two processes."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "train", *map(str, words), "--num-processes", "2"],
        env={**child_environment(), "OMP_NUM_THREADS": "1"}, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def kill_all(launcher: subprocess.Popen[str]) -> None:
    """Kill -9 a launcher and its processes, of which each has a session of its own."""
    for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
        process.kill()
    launcher.communicate()


def test_a_second_collection_is_rejected_and_changes_nothing(tmp_path, running):
    out = tmp_path / "out"
    words = ["--env", "textcraft", "--policy", "expert", "--out", out, "--samples", 9]
    first = running((out / "trajectories" / "collected.jsonl").exists, "collect", *words)
    before = snapshot(out)
    for other in (["collect", *words], ["eval", *words], ["train", write_config(tmp_path)]):
        option = "output_dir=FOLDER" if other[0] == "train" else "--out"
        folder = [f"output_dir={out}"] if other[0] == "train" else []
        status, output = finish(Command(*other, *folder))
        assert status == 2 and in_use(out, first.pid, option) in output, output
    assert snapshot(out) == before


def test_a_trainer_that_cannot_start_leaves_neither_lock_nor_folder(tmp_path):
    earlier = write_config(tmp_path, env="agentgym/TextCart-v0")
    status, output = finish(Command("train", earlier))
    assert status == 2 and "TextCraft" in output, output
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    status, output = finish(Command("train", earlier))
    assert status == 2 and [p.name for p in (tmp_path / "run").iterdir()] == ["notes.txt"]
