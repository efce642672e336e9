"""What tests of several rooms share: environments, hosts and servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import worlds

import agentgym_env
from agentgym_servers.app import make_app
from agentgym_servers.host import Host
from agentgym_servers.sessions import SessionTable

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


class HttpServer:
    """A real HTTP server in a thread of this process, so that a test can look into its table."""

    def __init__(self, host: Host) -> None:
        self.host = host
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(make_app(host), log_config=None, access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it and wait."""
        self._server.should_exit = True
        self._thread.join()


MakeHost = Callable[..., Host]


@pytest.fixture
def make_host() -> MakeHost:
    """Makes hosts of the test environments: `make_host(worlds.Guess, ttl_s=1, token="x")`."""

    def make(
        make_env: Callable[[], agentgym_env.TextEnv] = worlds.Guess,
        *,
        env_id: str = GUESS,
        token: str | None = None,
        max_body_bytes: int = 16 * 2**20,
        **settings: Any,
    ) -> Host:
        table = SessionTable(make_env, env_id=env_id, **settings)
        return Host(table, token=token, max_body_bytes=max_body_bytes)

    return make


@pytest.fixture
def serve(make_host: MakeHost) -> Iterator[Callable[..., HttpServer]]:
    """Serves hosts over HTTP; takes what `make_host` takes."""
    servers: list[HttpServer] = []

    def start(*args: Any, **settings: Any) -> HttpServer:
        servers.append(HttpServer(make_host(*args, **settings)))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def worlds_folder() -> Path:
    """Where the test environments lie."""
    return Path(worlds.__file__).parent
