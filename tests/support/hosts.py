"""Several hosts on one machine: network namespaces that share a bridge; needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any


@cache
def why_not() -> str | None:
    """Why hosts cannot be made here; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None:
        return "network namespaces need the program ip (Debian: iproute2)"
    name = f"agtry{os.getpid()}"  # other workers of the tests try it at the same time
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return (
        f"network namespaces cannot be made: {tried.stderr.strip()}" if tried.returncode else None
    )


@dataclass(frozen=True)
class Host:
    """One host: a namespace with one address."""

    name: str
    link: str
    address: str

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs `words` on this host."""
        return ["ip", "netns", "exec", self.name, *words]

    def run(self, words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program on this host to its end."""
        return subprocess.run(self.command(words), capture_output=True, text=True, **options)

    def start(
        self, words: Sequence[str], env: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[str]:
        """Start a program on this host."""
        return subprocess.Popen(self.command(words), text=True, env=dict(env), **options)

    def pids(self) -> list[int]:
        """Every process of this host."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self) -> None:
        """Kill every process of this host at once, as a power cut does, and cut its link."""
        self.cut()
        for _ in range(3):
            for pid in self.pids():
                subprocess.run(["kill", "-9", str(pid)], capture_output=True)

    def cut(self) -> None:
        """Cut its link; connections stay open and carry nothing."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """Repair its link."""
        _ip("link", "set", self.link, "up")

    def disturb(self, *words: str) -> bool:
        """Set `tc netem`, such as `delay 50ms loss 2%`; whether this kernel has it."""
        add = ["tc", "qdisc", "replace", "dev", self.link, "root", "netem", *words]
        return subprocess.run(add, capture_output=True).returncode == 0

    def drop(self, percent: int) -> bool:
        """Drop packets that arrive at random, by nftables; whether this system can."""
        rules = (
            "table ip lossy { chain input { type filter hook input priority 0; "
            f'iifname "eth0" numgen random mod 100 < {percent} drop; }} }}'
        )
        if shutil.which("nft") is None:
            return False
        return self.run(["nft", rules]).returncode == 0

    def throttle(self, rate: str) -> bool:
        """Send no faster than a rate, by `tc tbf`: what is more waits, for at most 0.4 s."""
        words = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf"]
        limits = ["rate", rate, "burst", "2kb", "latency", "400ms"]
        return self.run([*words, *limits]).returncode == 0


class Hosts(AbstractContextManager["Hosts"]):
    """`count` hosts in one network; all is removed in the end."""

    def __init__(self, count: int, prefix: str = "ag", network: str = "10.213.7") -> None:
        self._bridge = f"{prefix}br"
        self._network = network
        self.hosts = [
            Host(f"{prefix}{i}", f"{prefix}v{i}", f"{network}.{10 + i}") for i in range(count)
        ]

    def __enter__(self) -> Hosts:
        self._remove()
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        for host in self.hosts:
            _ip("netns", "add", host.name)
            _ip(
                "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.name
            )
            _ip("link", "set", host.link, "master", self._bridge, "up")
            inside = ("-n", host.name)
            _ip(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "route", "add", "default", "dev", "eth0")
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def _remove(self) -> None:
        for host in self.hosts:
            if self._exists(host.name):
                host.kill()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)
            subprocess.run(["ip", "link", "del", host.link], capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True)

    def _exists(self, name: str) -> bool:
        return os.path.exists(f"/run/netns/{name}")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
