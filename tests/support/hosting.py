"""The test environments' ids, and a real HTTP server that a test can look into."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import uvicorn

import agentgym_env
from agentgym_servers.host.app import App, make_app
from agentgym_servers.host.inline_host import Host
from agentgym_servers.host.protocols.dispatch import app_of
from agentgym_servers.host.settings import ServeSettings
from waiting import until

GUESS = "tests/Guess-v0"
TROUBLE = "tests/Trouble-v0"
UNMAKEABLE = "tests/Unmakeable-v0"

agentgym_env.register(GUESS, "worlds:Guess", max_episode_steps=20)
agentgym_env.register(TROUBLE, "worlds:Trouble")
agentgym_env.register(UNMAKEABLE, "worlds:Unmakeable")


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@contextmanager
def nobody() -> Iterator[str]:
    """`host:port` at which nobody listens, and which no other program is given."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*kept.getsockname())


class HttpServer:
    """A real HTTP server in a thread of this process, so that a test can look into its table."""

    def __init__(self, host: Host, app: App | None = None, **settings: Any) -> None:
        self.host = host
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            app or make_app(host), log_config=None, access_log=False, **settings
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it and wait."""
        self._server.should_exit = True
        self._thread.join()


def speaking(protocol: str, host: Host, **settings: Any) -> HttpServer:
    """A server of this process that speaks a neighbour's protocol."""
    told = ServeSettings(
        env_id=host.table.card().env, entry_point="x:Y", protocol=protocol,
        session_ttl_s=host.table.ttl_s, **settings,
    )  # fmt: skip
    return HttpServer(host, app_of(host, told))


def sessions_become(address: str, count: int) -> bool:
    """Whether a server comes to hold that many sessions, as its metrics tell."""

    def they_are() -> bool:
        told = requests.get(f"{address}/metrics", timeout=60).text
        return float(re.search(r"^agentgym_sessions (\S+)$", told, re.MULTILINE)[1]) == count

    return until(they_are, f"there are not {count} sessions")


class Served:
    """A running `python -m agentgym_servers`, or another module of ours."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        module: str = "agentgym_servers",
        stdin: int | None = None,
    ) -> None:
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, "PYTHONPATH": path}, stdin=stdin, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.errors = ""
        """What it wrote, as far as it was read."""
        self._address: str | None = None

    def address(self) -> str:
        """Where it says it listens."""
        if self._address is not None:
            return self._address
        for line in self.process.stderr:
            self.errors += line
            if found := re.search(r"serving \S+ on (http://\S+)", line):
                self._address = found[1]
                return found[1]
        raise AssertionError("it ended without serving")

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Send a signal and give the exit status."""
        self.process.send_signal(how)
        _, errors = self.process.communicate(timeout=120)
        self.errors += errors
        return self.process.returncode
