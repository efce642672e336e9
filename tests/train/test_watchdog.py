"""Processes of a run notice that another one failed, and wait for one that starts slowly."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch.distributed import HashStore

from agentgym_train.runs.watchdog import _FAILED, SILENCE_VARIABLE, STATUS, Watch

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, time, torch.distributed as dist
from agentgym_train.runs.watchdog import watching_processes
mode, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
dist.barrier()
if rank == 1 and mode == "starts late":
    time.sleep(15)
with watching_processes("Resume with: AGAIN"):
    if rank == 1 and mode == "fails":
        raise ValueError("out of luck")
    time.sleep(600 if mode == "fails" else 0)
    dist.barrier()
print("the end")
"""


class Watched(Watch):
    """Notes why it would end the process."""

    def __init__(self, store: HashStore, rank: int) -> None:
        super().__init__(store, rank, size=2, silence_s=60.0, resume="")
        self.ended = threading.Event()

    def _end(self, why: str) -> None:
        self.why = why
        self.ended.set()
        self.stop()


def test_a_failed_process_is_named(leap_when) -> None:
    store = HashStore()
    first, second = Watched(store, 0), Watched(store, 1)
    second.stop(_FAILED)
    first.start()
    leap_when(lambda: first._counts.get(1) == _FAILED)
    assert first.ended.wait(60)
    assert first.why == "process 1 of this run failed; see its error"


def test_a_process_that_was_heard_may_be_silent_for_a_minute(leap_when) -> None:
    store = HashStore()
    first, second = Watched(store, 0), Watched(store, 1)
    second._store.set("1", "7")  # and then no more
    first.start()
    leap_when(lambda: first._counts.get(1) == "7")
    assert first.ended.wait(60)
    assert "has not been heard of for 60 s" in first.why


def test_a_process_that_starts_slowly_may_be_silent_for_ten_minutes(leap_when) -> None:
    watch = Watched(HashStore(), 0)
    watch.start()
    leap_when(lambda: True, seconds=1000.0)
    assert watch.ended.wait(60)
    assert "has not been heard of for 600 s" in watch.why


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fails", "starts late"])
def test_a_failed_process_ends_the_others_and_a_slow_start_does_not(
    tmp_path: Path, mode: str
) -> None:
    env = {**os.environ, SILENCE_VARIABLE: "10", "OMP_NUM_THREADS": "1"}
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, mode, str(rank), str(tmp_path / "store")],
            env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in (0, 1)
    )  # fmt: skip
    said, other = first.communicate(timeout=500)[0], second.communicate(timeout=500)[0]
    if mode == "fails":
        assert "out of luck" in other
        assert first.returncode == STATUS, said
        assert "process 1 of this run failed; see its error" in said
        assert "Resume with: AGAIN" in said
        assert "the end" not in said
    else:
        assert (first.returncode, second.returncode) == (0, 0), said + other
        assert "the end" in said
