"""Servers and a clock that tests of the trainer share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hosting
from agentgym_env.launch import local_server

LEAP_S = 100.0
"""Less than the timeouts of requests, and more than the time limits of the tests' episodes."""


@pytest.fixture(scope="session")
def guess_server() -> Iterator[None]:
    """Keeps a local server of the guessing world, which all that need one then share."""
    with local_server(hosting.GUESS):
        yield


@pytest.fixture(scope="session")
def textcraft_server() -> Iterator[None]:
    """Keeps a local server of TextCraft, which all that need one then share."""
    with local_server("agentgym/TextCraft-v0"):
        yield


@pytest.fixture
def leap_when(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`leap_when(condition, loop)`: once the condition holds, `LEAP_S` seconds are over."""
    moved, real = [0.0], time.monotonic
    over, threads = threading.Event(), list[threading.Thread]()
    monkeypatch.setattr(time, "monotonic", lambda: real() + moved[0])

    def begin(condition: Callable[[], object], loop: Any = None, seconds: float = LEAP_S) -> None:
        def leap() -> None:
            while not condition():
                if over.wait(0.01):
                    return
            moved[0] += seconds
            if loop is not None:
                loop.call_soon_threadsafe(lambda: None)  # it looks at its timers

        threads.append(threading.Thread(target=leap, daemon=True))
        threads[-1].start()

    yield begin
    over.set()  # a condition that never held must not be looked at in the next test
    for thread in threads:
        thread.join()
