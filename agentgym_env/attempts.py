"""How often a call is tried and how long it waits in between; knows nothing of how it is made."""

from __future__ import annotations

import random
import time

from agentgym_env.errors import EnvironmentLost

_FIRST_PAUSE_S = 0.1
_jitter = random.Random()  # not the global one, whose draws a seeded program counts on


class Attempts:
    """How often a call is tried, and how long it waits in between."""

    def __init__(self, address: str, retries: int, timeout_s: float) -> None:
        self._address = address
        self._left = retries
        self._made = 0
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds the next attempt may take."""
        return max(0.001, self._deadline - time.monotonic())

    def pause_after(self, failure: str) -> float:
        """Seconds to wait before the next attempt; raises `EnvironmentLost` if there is none."""
        self._made += 1
        # Jitter keeps clients that failed together from coming back together.
        pause_s = _FIRST_PAUSE_S * 2.0 ** (self._made - 1) * _jitter.uniform(0.5, 1.0)
        if time.monotonic() + pause_s >= self._deadline:
            raise EnvironmentLost(
                f"{self._address} gave no answer within {self._timeout_s:g} s ({failure}); "
                "see whether it is overloaded, or raise timeout_s",
                code="timeout",
            )
        if self._left <= 0:
            raise EnvironmentLost(
                f"{self._address} cannot be reached after {self._made} tries ({failure}); "
                "see whether the server still runs",
                code="unreachable",
            )
        self._left -= 1
        return pause_s
