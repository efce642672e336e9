"""Real processes, really killed: who is left, and who is told."""

import signal
import subprocess
import sys
import time

import pytest
import requests

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
    killed = time.monotonic()
    while sessions_of(address):
        assert time.monotonic() - killed < 120, "sessions outlive their time"
        time.sleep(0.05)
