"""Starts the processes of a mesh, starts again those that die, and ends them all."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import IO, cast

import msgspec

from agentgym_env.errors import ServerStartFailed
from agentgym_env.launch import child_environment
from agentgym_servers.logs import event
from agentgym_servers.mesh_process import Orders
from agentgym_servers.serving import GRACE_S, listen
from agentgym_servers.settings import ServeSettings

logger = logging.getLogger(__name__)


def run_mesh(settings: ServeSettings, when_ready: Callable[[int], None]) -> None:
    """Serve by `settings.workers` processes until SIGTERM or SIGINT; report the port."""
    # Taken alone first: sharing a port with another server would mix their sessions up.
    with listen(settings.host, settings.port) as probe:
        port = probe.getsockname()[1]
    settings = msgspec.structs.replace(settings, port=port)
    stopping = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        stopping.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    with tempfile.TemporaryDirectory(prefix="agentgym-") as folder:
        members = [_Member(Orders(settings, index, folder)) for index in range(settings.workers)]
        try:
            for member in members:
                member.await_ready()
            when_ready(port)
            while not stopping.wait(0.2):
                for member in members:
                    member.revive()
        finally:
            for member in members:
                member.ask_to_end()
            for member in members:
                member.end()


class _Member:
    """One process of the mesh."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._process = self._start()

    def await_ready(self) -> None:
        """Wait until it serves; raises `ServerStartFailed` if it ends before."""
        with cast("IO[bytes]", self._process.stdout) as report:
            if report.readline() == b"ready\n":
                return
        status = self._process.wait()
        raise ServerStartFailed(
            f"worker {self._orders.index} of {self._orders.settings.env_id} did not come up "
            f"(exit status {status}); see the lines above"
        )

    def revive(self) -> None:
        """Start it again if it has died; its sessions are gone."""
        status = self._process.poll()
        if status is None:
            return
        event(logger, logging.ERROR, "worker_lost", worker=self._orders.index, exit_status=status)
        self._process = self._start()
        self.await_ready()

    def ask_to_end(self) -> None:
        """Let it finish the steps under way."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for its end; after a while, make it."""
        try:
            self._process.wait(GRACE_S + 2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        cast("IO[bytes]", self._process.stdin).close()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            # -P: the working directory must not shadow the standard library.
            [sys.executable, "-P", "-m", "agentgym_servers.mesh_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            # Ctrl-C is the supervisor's to handle.
            start_new_session=True,
        )
        stdin = cast("IO[bytes]", process.stdin)
        stdin.write(msgspec.json.encode(self._orders) + b"\n")
        stdin.flush()
        return process
