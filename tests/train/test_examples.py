"""The configs of examples/train run as they stand, but for their length."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_env.run_store import RunStore

ROOT = Path(__file__).parents[2]
SHORT = (
    "--steps 2 --horizon [2] --prompts_per_step 2 --group_size 2 --rows_per_forward 2 "
    "--eval_before false --eval_after false --save_every 2"
)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", ["babyai", "sciworld"])
def test_a_world_trains_for_two_steps(world, tmp_path):
    config = ROOT / "examples" / "train" / world / "quickstart.yaml"
    command = [
        sys.executable, "-c", "from agentgym_env.cli import main; main()", "train", str(config),
        *SHORT.split(), "--output_dir", str(tmp_path / "run"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    store = RunStore.open(tmp_path / "run")
    rows, broken = store.metrics()
    assert broken == [] and [row["step"] for row in rows] == [1, 2]
    assert all(row["env_steps"] == 2 * 2 * 2 and row["lost"] == 0 for row in rows), rows
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 16
