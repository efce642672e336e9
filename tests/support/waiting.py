"""Waits for an event that comes soon on a free machine, and later on a busy one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

LIMIT_S = 600.0
"""No test waits longer for one event. pytest ends a test after `timeout` of pyproject.toml."""
LEAP_S = 100.0
"""Less than the timeouts of requests, and more than the time limits of the tests' episodes."""


def until(found: Callable[[], Any], what: str = "it did not happen", process: Any = None) -> Any:
    """The first true value of `found`; an AssertionError with `what` if there is none in time.

    So too if there is none when `process` (a `Popen`, or the tests' `Command`) has ended.
    """
    end = time.monotonic() + LIMIT_S
    while True:
        ended = process is not None and process.poll() is not None
        if value := found():
            return value
        assert not ended, process.communicate()[0]
        assert time.monotonic() < end, f"{what} within {LIMIT_S:.0f} s"
        time.sleep(0.01)


def port_is_free(address: str) -> bool:
    """Whether a server could listen at `http://HOST:PORT` now."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, int(port)))
        except OSError:
            return False
        return True


async def turned(condition: Callable[[], Any]) -> None:
    """Return when `condition` is true; the loop runs meanwhile. A TimeoutError if it never is."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0)
