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


SHARDED = SCRIPT.with_name("sharded_update.py")
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "ACCELERATE_TORCH_DEVICE": "cpu",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}  # fmt: skip


def found_by(processes: int, out: Path, script: Path = SCRIPT, **variables: str):
    """What a script wrote."""
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "servers"), str(ROOT / "adapters")]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc_per_node", str(processes), str(script), str(out),
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true", **variables,
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=True)


@pytest.mark.slow
def test_two_processes_with_unequal_episodes_take_the_step_of_one(tmp_path):
    one = found_by(1, tmp_path / "one.pt")
    two = found_by(2, tmp_path / "two.pt")
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


@pytest.mark.slow
def test_sharded_weights_and_references_take_the_steps_of_one_process(tmp_path):
    one, two = (found_by(n, tmp_path / f"{n}.pt", SHARDED, **FSDP2) for n in (1, 2))
    for name, expected in one.items():
        found = two[name]
        assert expected["metrics"][0]["kl"] == pytest.approx(0, abs=1e-9)
        assert expected["metrics"][1]["kl"] > 1e-3, "the reference stays where it was"
        for rows in zip(found["metrics"], expected["metrics"], strict=True):
            assert rows[0] == pytest.approx(rows[1], rel=1e-4, abs=1e-6)
        for weight, value in expected["weights"].items():
            assert torch.allclose(found["weights"][weight], value, atol=1e-5), (name, weight)
