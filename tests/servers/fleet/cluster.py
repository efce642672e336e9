"""A Ray cluster whose machines are network namespaces of this one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts import Host, Hosts, why_not

PROGRAMS = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[3]


def why_no_cluster() -> str | None:
    """Why no cluster can be made here; None if it can."""
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        return "Ray is not installed (pip install 'agentgym-sdk[ray]')"
    missing = [name for name in ("ss", "curl") if shutil.which(name) is None]
    return f"there is no {' and no '.join(missing)} here" if missing else why_not()


@dataclass
class Cluster:
    """A head and its other machines."""

    head: Host
    others: list[Host]
    env: dict[str, str]
    folder: Path

    def agentgym(self, *words: object, on: Host | None = None, timeout: float = 120) -> str:
        """Run a command of agentgym on a machine, which must be a success; what it prints."""
        ended = self._ended(words, on, timeout)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def tried(
        self, *words: object, on: Host | None = None, timeout: float = 120
    ) -> tuple[int, str]:
        """(exit status, output and errors) of a command of agentgym."""
        ended = self._ended(words, on, timeout)
        return ended.returncode, ended.stdout + ended.stderr

    def _ended(
        self, words: tuple[object, ...], on: Host | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAMS / "agentgym"), *map(str, words)]
        return (on or self.head).run(command, env=self.env, timeout=timeout, cwd=self.folder)

    @contextmanager
    def started(self, *words: object, on: Host | None = None) -> Iterator[subprocess.Popen[str]]:
        """A program of this Python that runs on a machine; it is killed in the end."""
        command = [sys.executable, *map(str, words)]
        with (on or self.head).start(
            command, self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as program:
            try:
                yield program
            finally:
                program.kill()

    def up(self, text: str) -> str:
        """Start or change a fleet."""
        path = self.folder / "fleet.yaml"
        path.write_text(text)
        return self.agentgym("up", path, "--wait", 240, timeout=300)

    def status(self, name: str = "lab") -> dict[str, Any]:
        """A fleet's status."""
        found: dict[str, Any] = json.loads(self.agentgym("status", name, "--json"))[0]
        return found

    def ready(self, name: str = "lab") -> list[str]:
        """The addresses of the servers that are ready."""
        servers = self.status(name)["servers"]
        return sorted(server["address"] for server in servers if server["state"] == "ready")

    def kill_server(self, address: str) -> None:
        """Kill the process that listens at an address."""
        host, port = re.fullmatch(r"http://([0-9.]+):(\d+)", address).groups()  # type: ignore[union-attr]
        (machine,) = [each for each in (self.head, *self.others) if each.address == host]
        found = machine.run(["ss", "-Hltnp", f"sport = :{port}"]).stdout
        pid = re.search(r"pid=(\d+)", found)
        assert pid, found
        subprocess.run(["kill", "-9", pid[1]], check=True)

    def join(self, host: Host) -> None:
        """Make a machine part of the cluster."""
        address = f"--address={self.head.address}:6379"
        self._ray(host, address, "--num-cpus=2")

    def _ray(self, host: Host, *words: str) -> None:
        node = f"--node-ip-address={host.address}"
        command = [str(PROGRAMS / "ray"), "start", node, "--disable-usage-stats", *words]
        ended = host.run(command, env=self.env, timeout=120)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@contextmanager
def cluster(folder: Path, machines: int = 3) -> Iterator[Cluster]:
    """A cluster of `machines`, the first of which is the head; each has two logical CPUs."""
    number = os.getpid()
    network = f"10.{200 + number % 50}.{number % 250}"
    with Hosts(machines, prefix=f"ag{number % 100_000}", network=network) as made:
        head, *others = made.hosts
        env = {
            **os.environ,
            # A token that Ray left in the home folder would be used on some machines only.
            "RAY_AUTH_MODE": "disabled",
            "RAY_ADDRESS": f"{head.address}:6379",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        found = Cluster(head, others, env, folder)
        found._ray(head, "--head", "--port=6379", "--include-dashboard=false", "--num-cpus=2")
        for host in others:
            found.join(host)
        yield found
