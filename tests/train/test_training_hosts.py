"""Training on two machines (network namespaces), with servers on a third."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentgym_env.run_store import RunStore
from tests.servers.fleet.cluster import ROOT, Cluster, cluster, why_no_cluster
from tests.train.test_run import write_config
from waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_no_cluster() is not None, reason=str(why_no_cluster())),
]

FLEET = """
name: lab
servers:
  worlds: {env: agentgym/TextCraft-v0, replicas: 2, resources: {CPU: 1}}
"""
LEARNABLE = "tests.train.uneven:Uneven"
"""A random policy gets different rewards there, so that all gradients count."""
RUN = {
    "env": "agentgym/TextCraft-v0",
    "servers": ["ray://lab"],
    "horizon": [4],
    "steps": 3,
    "prompts_per_step": 4,
    "num_generations": 2,
    "turn_max_tokens": 6,
    "save_every": 1,
    "eval": {"before": False, "after": False},
}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as found:
        found.up(FLEET)
        yield found


def launched(
    machines: Cluster, stack: ExitStack, config: Path, ranks: int, hosts: int, *words: str
) -> list[subprocess.Popen[str]]:
    """A run of `ranks` processes on `hosts` machines."""
    started = []
    for rank in range(hosts):
        program = machines.started(
            "-m", "accelerate.commands.launch",
            "--config_file", ROOT / "examples" / "accelerate" / "cpu_two_processes.yaml",
            "--num_processes", ranks, "--num_machines", hosts, "--machine_rank", rank,
            "--main_process_ip", machines.head.address, "--main_process_port", 29571,
            "-m", "agentgym_train", config, *words,
            on=(machines.head, *machines.others)[rank],
        )  # fmt: skip
        started.append(stack.enter_context(program))
    return started


def test_two_machines_are_the_run_of_one(machines: Cluster) -> None:
    machines.env["PYTHONPATH"] = str(ROOT)
    world = f"env: {LEARNABLE}, env_vars: {{PYTHONPATH: {ROOT}}}"
    machines.up(FLEET.replace("env: agentgym/TextCraft-v0", world))
    learning = {"env": LEARNABLE, "learning_rate": 0.01}
    config = write_config(machines.folder, **(RUN | learning))
    for hosts in (1, 2):
        with ExitStack() as stack:
            words = f"output_dir={machines.folder}/run-{hosts}"
            for program in launched(machines, stack, config, 2, hosts, words):
                said = program.communicate(timeout=300)[0]
                assert program.returncode == 0, said
    one, two = (RunStore.open(machines.folder / f"run-{hosts}") for hosts in (1, 2))
    assert len(one.metrics()[0]) == 3
    assert all(row["grad_norm"] > 0 for row in one.metrics()[0]), "there is something to learn"
    for mine, its in zip(one.metrics()[0], two.metrics()[0], strict=True):
        for name in ("loss", "reward", "turns", "env_steps", "sampled_tokens", "grad_norm"):
            assert mine[name] == pytest.approx(its[name], rel=1e-4, abs=1e-6), name
    weights = [load_file(store.path / "model" / "model.safetensors") for store in (one, two)]
    start = load_file(machines.folder / "policy" / "model.safetensors")
    assert any(not w.equal(start[name]) for name, w in weights[0].items()), "something was learned"
    for name, weight in weights[0].items():
        assert weight.allclose(weights[1][name], rtol=1e-4, atol=5e-5), name


@pytest.mark.parametrize("way", ["process", "machine"])
def test_a_lost_machine_stops_the_run_with_a_reason_and_it_resumes_on_the_other(
    machines: Cluster, way: str
) -> None:
    machines.env["AGENTGYM_LOST_AFTER_S"] = "30"
    config = write_config(machines.folder, **(RUN | {"steps": 8, "save_every": 2}))
    run, lost = machines.folder / "run", machines.others[0]
    with ExitStack() as stack:
        first, _ = launched(machines, stack, config, 2, 2)
        state = run / "checkpoints" / "checkpoint-2" / "trainer_state.json"
        until(state.exists, process=first)
        if way == "machine":
            lost.kill()
        else:
            trainers = [pid for pid in lost.pids() if b"agentgym_train" in _words(pid)]
            subprocess.run(["kill", "-9", *map(str, trainers)], check=True)
        said = first.communicate(timeout=300)[0]
    assert first.returncode != 0
    assert "[rank0]: Traceback" not in said, said
    assert said.count(f"Resume with: agentgym train --resume {run}") == 1, said
    machines.agentgym("train", "--resume", run, "--trust", "--num-processes", 1, timeout=300)
    steps = [row["step"] for row in RunStore.open(run).metrics()[0]]
    assert steps == list(range(1, 9))


def _words(pid: int) -> bytes:
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""
