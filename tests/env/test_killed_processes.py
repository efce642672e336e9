"""Real processes, really killed: who is left, and who is told."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import requests

from agentgym_env import RemoteVectorEnv
from waiting import until

WORLD = "worlds:Guess"

CLIENT = """
import sys, time
from agentgym_env import EnvClient
client = EnvClient(sys.argv[1])
sessions = client.open_many(50)
client.reset_many([(s, i, None, None) for i, s in enumerate(sessions)])
print("playing", flush=True)
while True:
    client.step_many([(s, "0") for s in sessions])
"""


def sessions_of(address: str) -> int:
    return int(requests.get(address + "/health", timeout=60).json()["sessions"])


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_client_leaves_no_session_past_its_time(run, workers):
    ttl_s = 6.0  # longer than a busy machine may keep the client from its next step
    served = run(WORLD, "--port", "0", "--session-ttl", str(ttl_s), "--workers", workers)
    address = served.address()
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, address], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout.readline() == "playing\n"
    time.sleep(ttl_s)  # as long as it steps, its sessions live
    assert sessions_of(address) == 50
    client.send_signal(signal.SIGKILL)
    client.communicate()
    until(lambda: not sessions_of(address), "sessions do not end")


@pytest.mark.slow
def test_a_killed_server_yields_exactly_the_lost_episodes(run):
    dying, living = run(WORLD, "--port", "0"), run(WORLD, "--port", "0")
    addresses = [dying.address(), living.address()]
    envs = RemoteVectorEnv(WORLD, 4, addresses, retries=1)
    envs.reset(seed=0, options={"task": "5"})
    doomed = np.array([s.address == addresses[0] for s in envs._sessions])
    assert doomed.sum() == 2
    dying.process.kill()
    dying.process.wait()
    _, rewards, terminations, truncations, infos = envs.step(["5"] * 4)
    assert [f == "environment_lost" for f in infos["failure"]] == doomed.tolist()
    assert [party == "server" for party in infos["at_fault"]] == doomed.tolist()
    assert truncations.tolist() == doomed.tolist()
    # The others won in that very step; the lost ones have no reward, which is not zero.
    assert np.isnan(rewards).tolist() == doomed.tolist()
    assert rewards[~doomed].tolist() == [1.0] * 2
    assert terminations.tolist() == (~doomed).tolist()
    envs.reset(options={"reset_mask": np.ones(4, np.bool_), "task": "5"})
    _, rewards, _, _, infos = envs.step(["5"] * 4)
    assert rewards.sum() == 4 and "error" not in infos, "the living server took them over"
    assert sessions_of(addresses[1]) == 4
    envs.close()
