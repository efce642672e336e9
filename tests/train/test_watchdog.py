"""Processes of a run notice that another one failed, and wait for one that starts slowly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_train.runs.watchdog import SILENCE_VARIABLE, STATUS

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, time, torch.distributed as dist
from agentgym_train.runs.watchdog import watching_processes
mode, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
dist.barrier()
if rank == 1 and mode == "starts late":
    time.sleep(5)
with watching_processes("Resume with: AGAIN"):
    if rank == 1 and mode == "fails":
        raise ValueError("out of luck")
    time.sleep(20 if mode == "fails" else 0)
    dist.barrier()
print("the end")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["fails", "starts late"])
def test_a_failed_process_ends_the_others_and_a_slow_start_does_not(
    tmp_path: Path, mode: str
) -> None:
    env = {**os.environ, SILENCE_VARIABLE: "2", "OMP_NUM_THREADS": "1"}
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, mode, str(rank), str(tmp_path / "store")],
            env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in (0, 1)
    )  # fmt: skip
    said, other = first.communicate(timeout=100)[0], second.communicate(timeout=100)[0]
    if mode == "fails":
        assert "out of luck" in other
        assert first.returncode == STATUS, said
        assert "process 1 of this run failed; see its error" in said
        assert "Resume with: AGAIN" in said
        assert "the end" not in said
    else:
        assert (first.returncode, second.returncode) == (0, 0), said + other
        assert "the end" in said
