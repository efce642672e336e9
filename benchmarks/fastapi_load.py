"""Starts the FastAPI baseline and plays episodes against it, as our own host is played against."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop

from agentgym_servers.host.load import Connection, Load, Play, connected, single_load

PORT = 8341


class FastApiPlayer:
    """A session of the FastAPI server."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    async def reset(self, play: Play) -> None:
        """Start an episode."""
        body = {"id": self._number, "seed": play.seed, "task": play.task}
        await self._connection.post("/reset", msgspec.json.encode(body))

    async def step(self, action: str) -> bool:
        """Take a turn; whether the episode ended."""
        body = msgspec.json.encode({"id": self._number, "action": action})
        return _observed.decode(await self._connection.post("/step", body)).done


class _Observed(msgspec.Struct):
    """What the generator reads of a step's reply."""

    done: bool


_observed = msgspec.json.Decoder(_Observed)


def measure_fastapi(address: str, count: int, plays: Sequence[Play], seconds: float) -> Load:
    """One call a step, as our own host is asked."""

    async def run() -> Load:
        async with connected(address, count) as connections:
            actors = [FastApiPlayer(c, int(await c.post("/create", b""))) for c in connections]
            return await single_load(actors, plays, seconds)

    return uvloop.run(run())


@contextmanager
def fastapi_server(world: str) -> Iterator[str]:
    """The baseline of a world in a process of its own; its address."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "uvicorn", "--app-dir", str(Path(__file__).parent),
            "--port", str(PORT), "--log-level", "warning",
            # Connections stand idle while sixty-four JVMs start.
            "--timeout-keep-alive", "600", "fastapi_server:app",
        ],
        env={**os.environ, "BASELINE_WORLD": world},
    )  # fmt: skip
    address = f"http://127.0.0.1:{PORT}"
    try:
        _await(address, process)
        yield address
    finally:
        process.terminate()
        process.wait()


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    async def knock() -> None:
        async with connected(address, 1):
            pass

    for _ in range(100):
        if process.poll() is not None:
            sys.exit("the FastAPI server did not start; pip install fastapi")
        try:
            uvloop.run(knock())
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("the FastAPI server does not answer")
