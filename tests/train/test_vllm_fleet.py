"""A fleet with real vLLM on one host, worlds on another, and the trainer on a third."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from agentgym_env.run_store import RunStore
from tests.servers.fleet.cluster import cluster, why_no_cluster
from tests.train.small import save_tiny_policy
from tests.train.test_run import write_config
from waiting import until

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here; `make setup-vllm`", allow_module_level=True)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(why_no_cluster() is not None, reason=str(why_no_cluster())),
]

FLEET = """
name: lab
servers:
  worlds: {{env: agentgym/TextCraft-v0, resources: {{CPU: 1}}}}
  policy:
    model: {model}
    options: {{dtype: float32, max_model_len: 768, cpu_cache_gb: 1}}
    resources: {{CPU: 2}}
"""


@pytest.mark.slow
def test_a_run_on_a_fleet_with_vllm_outlives_its_server_and_keeps_its_weights(
    tmp_path: Path,
) -> None:
    model = save_tiny_policy(tmp_path / "served")
    with cluster(tmp_path) as machines:
        said = machines.up(FLEET.format(model=model))
        assert "engine.servers: [ray://lab/policy]" in said
        (before,) = [s for s in machines.status()["servers"] if s["group"] == "policy"]
        config = write_config(
            tmp_path, servers=["ray://lab"],
            engine={"type": "vllm", "servers": ["ray://lab"],
             "weights_dir": str(tmp_path / "weights")}, eval={"before": False, "after": False},
             steps=6, horizon=[3],
            max_tokens=768,
        )  # fmt: skip
        with machines.started("-m", "agentgym_train", config) as trainer:
            metrics = tmp_path / "run" / "metrics.jsonl"
            until(
                lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, process=trainer
            )
            machines.kill_server(before["address"])
            output = trainer.communicate(timeout=500)[0]
        assert trainer.returncode == 0, output
        rows = RunStore.open(tmp_path / "run").metrics()[0]
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert max(row["engine/logprob_difference_max"] for row in rows) < 1e-3, "other weights"
        (after,) = [s for s in machines.status()["servers"] if s["group"] == "policy"]
        assert (after["address"], after["restarts"]) == (before["address"], 1)
