"""A worker's sign of life: a byte a second for its supervisor, as long as it can serve.

It comes from a thread, so a worker that is stopped, or whose interpreter a C call holds, is silent.
So is one whose event loop does not turn, unless it is inside a call of a world: those have a time
limit of their own, and other sessions outlast them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from typing import Final

from agentgym_servers.host.time_limit import TimeLimit

_BEAT: Final = b"."
READY: Final = b"r"
SILENT_AFTER_S: Final = 5.0
"""A worker that serves and is silent for so long is replaced."""
SILENT_START_S: Final = 120.0
"""One that starts may be silent for longer: reading a large file can hold the interpreter."""
_PERIOD_S: Final = 1.0
_LATE_LOOP_S: Final = 3.0
"""An event loop that has not turned for so long hangs, or is inside a call of a world."""
_LATE_CALL_S: Final = 10.0
"""Seconds after its limit in which a call of a world must have ended: it may clean up."""


class Heartbeat:
    """Writes beats to a pipe, from its start to the end of the process."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._time_limit: TimeLimit | None = None
        self._turned = 0.0
        self._call: object = None
        self._call_seen = 0.0
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()

    def serve(self, time_limit: TimeLimit) -> None:
        """Report that the worker serves; called in its event loop, which is watched from now on."""
        self._turn(asyncio.get_running_loop())
        self._time_limit = time_limit
        self._write(READY)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turned = time.monotonic()
        loop.call_later(_PERIOD_S, self._turn, loop)

    def _beat(self) -> None:
        while True:
            if self._can_serve(time.monotonic()):
                self._write(_BEAT)
            time.sleep(_PERIOD_S)

    def _can_serve(self, now: float) -> bool:
        if self._time_limit is None:  # it starts
            return True
        call = self._time_limit.running
        if call is not self._call:
            self._call, self._call_seen = call, now
        if now - self._turned < _LATE_LOOP_S:
            return True
        return call is not None and now - self._call_seen < self._time_limit.limit_s + _LATE_CALL_S

    def _write(self, byte: bytes) -> None:
        # Without a supervisor the worker ends anyway.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, byte)
