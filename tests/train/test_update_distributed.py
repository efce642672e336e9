"""The step of two processes with unequal episodes is the step of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.ragged_rows import llama
from tests.train.two_processes import BUDGETS, LOSSES

SCRIPT = Path(__file__).with_name("two_processes.py")
ROOT = SCRIPT.parents[2]


def weights_after_a_step(processes: int, out: Path):
    """What two_processes.py wrote."""
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "servers"), str(ROOT / "adapters")]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc_per_node", str(processes), str(SCRIPT), str(out),
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=True)


@pytest.mark.slow
def test_two_processes_with_unequal_episodes_take_the_step_of_one(tmp_path):
    one = weights_after_a_step(1, tmp_path / "one.pt")
    two = weights_after_a_step(2, tmp_path / "two.pt")
    start = dict(llama().named_parameters())
    for loss in LOSSES:
        reference = one[loss, 10_000]["weights"]
        assert not torch.allclose(reference["lm_head.weight"], start["lm_head.weight"], atol=1e-3)
        for found in (run[loss, budget] for run in (one, two) for budget in BUDGETS):
            for name, weight in reference.items():
                assert torch.allclose(found["weights"][name], weight, atol=2e-5), (loss, name)
            assert found["metrics"] == pytest.approx(
                one[loss, 10_000]["metrics"], rel=1e-4, abs=1e-6
            )
    critic = one["critic", 10_000]["weights"]
    assert critic["head.weight"].abs().max() > 1e-3
    for found in (one["critic", 60], two["critic", 10_000], two["critic", 60]):
        for name, weight in critic.items():
            assert torch.allclose(found["weights"][name], weight, rtol=1e-4, atol=1e-6), name
        figures = one["critic", 10_000]["figures"]
        assert len(figures) == 3 and found["figures"] == pytest.approx(figures, rel=1e-3)
    assert one["token", 10_000]["rows"] == [[8]]
    # The process with short rows makes as many passes, of which some have no weight.
    first, second = two["token", 110]["rows"]
    assert len(first) == len(second) and sum(first) > sum(second) == 4
