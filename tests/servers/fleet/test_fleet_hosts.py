"""Fleets on three machines (network namespaces): real Ray, real servers, real faults."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.fleet.cluster import Cluster, cluster, why_no_cluster
from waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_no_cluster() is not None, reason=str(why_no_cluster())),
]

EPISODES = 1500
FLEET = """
name: lab
servers:
  worlds: {env: agentgym/TextCraft-v0, replicas: 2, resources: {CPU: 1}}
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as found:
        yield found


def test_a_fleet_serves_every_way_to_use_it_and_replaces_what_is_killed(machines: Cluster) -> None:
    said = machines.up(FLEET)
    assert "servers: [ray://lab/worlds]" in said
    before = machines.ready()
    assert len({address.split(":")[1] for address in before}) == 2, "on two machines"

    with machines.started("-c", PLAY) as played:
        assert played.communicate(timeout=240)[0].splitlines()[-1] == "True 8", "make and make_vec"
    machines.agentgym(
        "collect", "--env", "textcraft", "--server", "ray://lab", "--policy", "expert",
        "--split", "train", "--n", 20, "--out", "demos",
    )  # fmt: skip
    assert len(_collected(machines, "demos")) == 20
    machines.agentgym(
        "eval", "--env", "textcraft", "--server", "ray://lab/worlds", "--policy", "expert",
        "--split", "test", "--limit", 10, "--json", "report.json", on=machines.others[0],
    )  # fmt: skip
    assert '"success"' in (machines.folder / "report.json").read_text()

    machines.kill_server(before[0])
    restarted = "was restarted: exited with status -9"
    until(lambda: any(restarted in event["text"] for event in machines.status()["events"]))
    until(lambda: _answers(machines, before[0]))

    status, text = machines.tried("eval", "--env", "textcraft", "--server", "ray://none",
                                  "--policy", "expert")  # fmt: skip
    assert status == 2
    assert "the Ray cluster has no fleet 'none'; it has lab" in text
    status, text = machines.tried("down", "lab", "--node", "192.0.2.1")
    assert status == 2
    assert f"no such machine; it has {machines.head.address}, " in text
    with machines.started("-c", WHERE) as told:
        assert machines.head.address in told.communicate(timeout=240)[0], "where the controller is"
    with machines.started("-c", LOSES_A_MACHINE) as program:
        assert program.communicate(timeout=240)[0].splitlines()[-1] == "[]", "nothing of Ray's"

    machines.agentgym("down", "lab")
    assert json.loads(machines.agentgym("status", "--json")) == []
    assert not any(_answers(machines, address) for address in before)


PLAY = """
import gymnasium, agentgym_env
env = gymnasium.make("agentgym/TextCraft-v0", server="ray://lab")
env.reset(seed=3)
terminated = False
while not terminated:
    _, _, terminated, _, info = env.step(env.unwrapped.expert_action())
envs = gymnasium.make_vec("agentgym/TextCraft-v0", num_envs=8, server="ray://lab/worlds")
texts, _ = envs.reset(seed=0)
print(info["success"], len(texts))
"""


WHERE = """
from agentgym_servers.fleet.ray_cluster import ask, connected, controller_of
with connected():
    print(ask(controller_of("lab"), "endpoint")[0])
"""


LOSES_A_MACHINE = """
import io, sys, time, ray
from ray._private.utils import publish_error_to_driver
from agentgym_servers.fleet.ray_cluster import connected
output, sys.stdout, sys.stderr = sys.stdout, io.StringIO(), io.StringIO()
errors = sys.stderr
with connected():
    client = ray._private.worker.global_worker.gcs_client
    while "a machine was lost" not in errors.getvalue():
        publish_error_to_driver("node_died", "a machine was lost", client)
        time.sleep(0.1)
print([] if sys.stdout.getvalue() == "" else sys.stdout.getvalue(), file=output)
"""
"""What Ray says of its machines while a command runs."""


def _answers(machines: Cluster, address: str) -> bool:
    probe = ["curl", "--silent", "--fail", "--max-time", "10", f"{address}/health"]
    return machines.head.run(probe).returncode == 0


def test_a_run_outlives_a_killed_machine_and_counts_every_episode_once(machines: Cluster) -> None:
    machines.up(FLEET.replace("replicas: 2", "replicas: 3"))
    before = machines.ready()
    assert len(before) == 3
    victim = machines.others[1]
    with machines.started(
        "-c", "from agentgym_env.cli import main; main()", "collect", "--env", "textcraft",
        "--server", "ray://lab", "--policy", "random", "--split", "train", "--n", EPISODES,
        "--horizon", 30, "--concurrency", 24, "--out", "random",
    ) as run:  # fmt: skip
        until(lambda: _served(machines, victim) > 0)
        victim.kill()
        said = run.communicate(timeout=300)[0]
        assert run.returncode == 0, said
    episodes = _collected(machines, "random")
    assert len(episodes) == EPISODES
    assert len({(episode["task"], episode["seed"]) for episode in episodes}) == EPISODES
    assert all(_is_whole(episode) for episode in episodes)
    until(lambda: len(machines.ready()) == 3)
    assert not [a for a in machines.ready() if victim.address in a]
    told = [e["text"] for e in machines.status()["events"] if victim.address in e["text"]]
    assert sum("machine" in text for text in told) == 1, told


def _collected(machines: Cluster, name: str) -> list[dict]:
    path = machines.folder / name / "trajectories" / "collected.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def _served(machines: Cluster, host: object) -> int:
    servers = machines.status()["servers"]
    return sum(server["load"] for server in servers if server["node"] == host.address)  # type: ignore[attr-defined]


def _is_whole(episode: dict) -> bool:
    return episode["outcome"] in ("success", "failure", "horizon") and bool(episode["turns"])


def test_a_cut_link_and_a_bad_network_lose_and_double_nothing(machines: Cluster) -> None:
    machines.up(FLEET)
    netem = ("delay", "30ms", "10ms", "loss", "2%", "duplicate", "1%", "reorder", "5%")
    for host in machines.others:
        if host.disturb(*netem):
            continue
        if not host.throttle("1mbit"):
            sys.stdout.write("neither netem nor tbf in this kernel: nothing is delayed\n")
        if not host.drop(2):
            sys.stdout.write("neither netem nor nftables: packets are not dropped\n")
    with machines.started("-c", COUNT) as told:
        until(lambda: (machines.folder / "begun").exists())
        for host in machines.others:
            host.cut()
            time.sleep(3)
            host.mend()
        (machines.folder / "enough").touch()
        steps, lost, wrong = map(int, told.communicate(timeout=200)[0].splitlines()[-1].split())
    assert steps >= 200
    assert wrong == 0, "a turn was taken twice or left out"
    assert lost == 0, "a cut of three seconds lost an episode"


COUNT = """
import pathlib, gymnasium, agentgym_env
envs = gymnasium.make_vec("agentgym/TextCraft-v0", num_envs=8, server="ray://lab", timeout_s=60)
envs.reset(seed=0, options={"split": "train"})
steps = lost = wrong = 0
turns = [0] * 8
# Each turn gathers one log, so that the inventory says how often it was taken.
while steps < 200 or not pathlib.Path("enough").exists():
    texts, rewards, ends, cuts, _ = envs.step(["get 1 oak log"] * 8)
    pathlib.Path("begun").touch()
    steps += 8
    shown = envs.step(["inventory"] * 8)[0]
    for i, text in enumerate(shown):
        turns[i] += 1
        lost += rewards[i] != rewards[i]
        wrong += rewards[i] == rewards[i] and f"Inventory: {turns[i]} oak log" not in text
    if turns[0] == 20:
        envs.reset(seed=steps, options={"split": "train"})
        turns = [0] * 8
print(steps, lost, wrong)
"""
