"""The Ray cluster that `agentgym up` starts: who reaches it, and what its head leaves behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from waiting import until

pytest.importorskip("ray", reason="Ray is not installed (pip install 'agentgym-sdk[ray]')")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent
FLEET = "name: lab\nservers: {worlds: {env: agentgym/TextCraft-v0, resources: {CPU: 0.1}}}\n"
WITHOUT_ROOM = FLEET.replace("0.1", "9999")
INTRUDER = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(ray.get(ray.remote(lambda: "ran as you").remote(), timeout=30))
"""
CLIENT = """
import gymnasium, agentgym_env
from agentgym_env.errors import AgentGymError
env = gymnasium.make("agentgym/TextCraft-v0", server="ray://lab")
env.reset(seed=3)
steps = 0
print("plays", flush=True)
try:
    while True:
        _, _, terminated, truncated, _ = env.step("inventory")
        steps += 1
        if terminated or truncated:
            env.reset(seed=3)
except AgentGymError as error:
    print(f"{type(error).__name__} after {steps} steps", flush=True)
"""


class Machine:
    """A home folder and Ray's folder, by which the processes of a cluster are known."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        unwanted = {"RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
        self.env = {name: value for name, value in os.environ.items() if name not in unwanted}
        self.env |= {"HOME": str(folder), "RAY_TMPDIR": str(folder)}

    def start(self, *words: object, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(word) for word in words], env={**self.env, **env}, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *words: object, **env: str) -> tuple[int, str]:
        """(exit status, what it said in one line)."""
        process = self.start(*words, **env)
        said = process.communicate(timeout=300)[0]
        return process.returncode, " ".join(said.split())

    def up(self, *words: object, text: str = FLEET) -> tuple[int, str]:
        (self.folder / "fleet.yaml").write_text(text)
        return self.run(BIN / "agentgym", "up", "fleet.yaml", *words)

    def processes(self) -> list[psutil.Process]:
        """Everything that was started with this home folder and still runs."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                runs = process.status() != psutil.STATUS_ZOMBIE
                if runs and process.environ().get("RAY_TMPDIR") == str(self.folder):
                    found.append(process)
        return found

    def listeners(self) -> dict[tuple[str, int], str]:
        """(address, port) -> the process that listens there."""
        found = {}
        for process in self.processes():
            with suppress(psutil.Error):
                for one in process.net_connections("tcp"):
                    if one.status == psutil.CONN_LISTEN:
                        place = one.laddr.ip.removeprefix("::ffff:"), one.laddr.port
                        found[place] = " ".join(process.cmdline())[:300]
        return found

    def kill(self, name: str) -> None:
        (process,) = [p for p in self.processes() if name in p.name()]
        process.kill()


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="ag", ignore_cleanup_errors=True) as folder:
        found = Machine(Path(folder))
        try:
            yield found
        finally:
            for process in found.processes():
                with suppress(psutil.Error):
                    process.kill()


def own_address() -> str:
    """An address of this machine that is not the loopback interface's."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    pytest.skip("this machine has no address but 127.0.0.1")


def reached(ports: list[int], host: str) -> list[int]:
    found = []
    for port in ports:
        with suppress(OSError):
            socket.create_connection((host, port), timeout=5).close()
            found.append(port)
    return found


def test_a_cluster_of_one_machine_is_reached_from_it_alone_and_ends_with_its_head(machine):
    status, said = machine.up()
    assert status == 0 and "on 127.0.0.1, for this machine alone" in said, said
    listening = machine.listeners()
    assert {host for host, _ in listening} == {"127.0.0.1"}, listening
    programs = " ".join(listening.values())
    for name in ("gcs_server", "raylet", "ray::ControllerActor", "ray::ReplicaActor", "serve "):
        assert name in programs, listening
    ports = [port for _, port in listening]
    assert reached(ports, own_address()) == [] and reached(ports, "127.0.0.1") == ports
    sys.stdout.write(f"the {len(ports)} ports of a local cluster: not reached from outside\n")

    client = machine.start(sys.executable, "-c", CLIENT)
    assert client.stdout.readline() == "plays\n", client.communicate()[0]
    machine.kill("gcs_server")
    status, said = machine.run(BIN / "agentgym", "status", "lab")
    assert status == 2 and "does not answer" in said, said
    said = client.communicate(timeout=400)[0]
    steps = int(re.fullmatch(r"EnvironmentLost after (\d+) steps\n", said)[1])
    ours = ("ray::", "raylet", "serve agentgym/")
    until(lambda: not any(n in " ".join(p.cmdline()) for p in machine.processes() for n in ours))
    sys.stdout.write(f"a client of a cluster without a head: told so after {steps} steps\n")


def test_up_says_that_the_head_is_gone(machine):
    (machine.folder / "fleet.yaml").write_text(WITHOUT_ROOM)
    process = machine.start(BIN / "agentgym", "up", "fleet.yaml", "--wait", 500)
    until(lambda: "no machine has room" in process.stdout.readline(), process=process)
    machine.kill("gcs_server")
    said = " ".join(process.communicate(timeout=300)[0].split())
    assert process.returncode == 2 and "the head of the Ray cluster has not answered" in said, said
    sys.stdout.write("`agentgym up` whose head is killed: says so\n")


def test_a_cluster_that_others_reach_requires_a_token(machine):
    host = own_address()
    for wrong in ("0.0.0.0", "192.0.2.77", "example"):
        status, said = machine.up("--host", wrong)
        assert status == 2 and "--host must be an address of this machine" in said, said
    status, said = machine.up("--host", host)
    assert status == 0 and "requires no token" not in said, said
    token = machine.folder / ".ray" / "auth_token"
    assert token.stat().st_mode & 0o77 == 0
    intruder = (sys.executable, "-c", INTRUDER)
    for env in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "wrong" * 8}):
        status, said = machine.run(*intruder, f"{host}:6379", **env)
        assert status and "ran as you" not in said, said
    with_token = machine.run(*intruder, f"{host}:6379", RAY_AUTH_MODE="token")
    assert with_token == (0, "ran as you")
    status, said = machine.run(BIN / "agentgym", "status", "lab")
    assert status == 0 and "ready" in said, said
    status, said = machine.up("--host", host)
    assert status == 2 and "one runs already" in said, said
    sys.stdout.write("a cluster that others reach: nobody without its token runs code there\n")


def test_joining_a_cluster_without_a_token_warns(machine):
    host = own_address()
    words = ("start", "--head", "--include-dashboard=false", f"--node-ip-address={host}")
    status, said = machine.run(BIN / "ray", *words, RAY_AUTH_MODE="disabled")
    assert status == 0, said
    assert machine.run(sys.executable, "-c", INTRUDER,
                       f"{host}:6379") == (0, "ran as you")  # fmt: skip
    status, said = machine.up()
    assert status == 0 and "this Ray cluster requires no token" in said, said
    # Named by the loopback address, as its own machine may do.
    status, said = machine.run(BIN / "agentgym", "status", "--cluster", "127.0.0.1:6379")
    assert status == 0 and "ready" in said, said
    sys.stdout.write("a cluster without a token: `agentgym up` warns\n")
