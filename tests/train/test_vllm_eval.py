"""`agentgym eval --policy vllm:URL`: the same episodes as by transformers, greedily, in float32."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from agentgym_env.run_store import RunStore
from tests.train.test_vllm_served import KEY, LENGTH, WARM, address  # noqa: F401  (a fixture)

pytestmark = pytest.mark.vllm


def test_a_vllm_server_is_evaluated_as_the_model_that_it_serves(address, tmp_path):  # noqa: F811
    command = [
        sys.executable, "-c", "from agentgym_env.cli import main; main()", "eval", "--env",
        "textcraft", "--policy", f"here=hf:{WARM}", "--policy", f"there=vllm:{address}",
        "--horizon", "6", "--limit", "8", "--temperature", "0", "--turn-max-tokens", "24",
        "--max-tokens", str(LENGTH), "--instruction", "", "--out", "out",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path,
        env={**os.environ, "VLLM_API_KEY": KEY, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    here, there = found["reports"]["here"], found["reports"]["there"]
    assert there["policy"] == "vllm:warm" and there["episodes"] == 8
    for figure in ("success", "turns", "tokens", "invalid_actions"):
        assert here[figure] == there[figure]
    assert found["comparisons"][0]["p"] == 1.0
    store = RunStore.open(tmp_path / "out")
    texts = [
        {t.task: [turn.response for turn in t.turns] for t in store.trajectories(name)[0]}
        for name in ("here", "there")
    ]
    assert texts[0] == texts[1]
    assert all(t.tokens is not None for t in store.trajectories("there")[0])
    assert KEY not in done.stdout + done.stderr + (tmp_path / "out" / "run.json").read_text()
