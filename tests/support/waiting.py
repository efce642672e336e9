"""Waits for an event that comes soon on a free machine, and later on a busy one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LIMIT_S = 600.0
"""No test waits longer for one event. pytest ends a test after `timeout` of pyproject.toml."""


def until(found: Callable[[], Any], what: str = "it did not happen") -> Any:
    """The first true value of `found`; an AssertionError with `what` if there is none in time."""
    end = time.monotonic() + LIMIT_S
    while not (value := found()):
        assert time.monotonic() < end, f"{what} within {LIMIT_S:.0f} s"
        time.sleep(0.01)
    return value
