"""The time limit of an inline world's calls: its sessions share a thread, so one must not hold it.

A thread watches the calls. It logs one that takes long, and ends one that takes too long by an
exception, where worlds step in the main thread of a system with signals.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar, TypeVarTuple

from agentgym_env.errors import EnvironmentFault
from agentgym_servers.host.codec import cut
from agentgym_servers.host.logs import event

logger = logging.getLogger(__name__)

REPORT_AFTER_S: Final = 20.0
"""A call that takes longer is logged."""
_TICK_S: Final = 1.0
_LEAST_S: Final = 1.0
"""The limit is not shortened below this, nor below a quarter."""
_REPEAT_S: Final = 5.0
"""A call that goes on after its end, such as one that cleans up, is interrupted again."""
_SIGNAL: Final = getattr(signal, "SIGURG", None)
"""Few programs use it, and without a handler it does nothing."""

R = TypeVar("R")
Arguments = TypeVarTuple("Arguments")


class _TooLong(BaseException):
    """Raised within a call. A world's `except Exception` must not keep it."""


_Call = tuple[str, str | None, int]
"""What is done, the task, and the turn or 0; each call has a tuple of its own."""


class TimeLimit:
    """Limits each call of a world to `limit_s` seconds once it is started.

    All sessions wait while a call runs. So that many that hang do not hold them up for `limit_s`
    each, every one that was ended halves the limit of the next, down to a quarter or to twice the
    longest call that returned, until none was ended for `limit_s`.
    """

    def __init__(self, limit_s: float, report_after_s: float = REPORT_AFTER_S) -> None:
        self.limit_s = limit_s
        self.report_after_s = report_after_s
        self.running: _Call | None = None
        """The call that is under way; each has a tuple of its own."""
        self._late: _Call | None = None
        """The call that is to end, since it ran for `_late_after_s`."""
        self._late_after_s = limit_s
        self._ended = 0
        """Calls that were ended, one soon after the other."""
        self._last_end = 0.0
        self._last_signal = 0.0
        self._longest_s = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._ends = False
        """Whether it ends calls, or only logs them."""
        self._before: Any = None

    def call(
        self,
        what: str,
        task: str | None,
        turn: int,
        function: Callable[[*Arguments], R],
        *arguments: *Arguments,
    ) -> R:
        """Call a world; raises `EnvironmentFault` if it takes too long."""
        # The clock is the other thread's: this is in the path of every step.
        self.running = (what, task, turn)
        try:
            return function(*arguments)
        except _TooLong as late:
            self.running = None
            raise EnvironmentFault(str(late), "deadline").with_traceback(
                late.__traceback__
            ) from None
        finally:
            self.running = None

    def start(self) -> None:
        """Begin to watch; called in the thread in which the worlds step."""
        self._ends = (
            _SIGNAL is not None
            and hasattr(signal, "pthread_kill")
            and threading.current_thread() is threading.main_thread()
        )
        if self._ends and _SIGNAL is not None:
            self._before = signal.signal(_SIGNAL, self._interrupt)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="time limit")
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; called in the same thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._ends and _SIGNAL is not None and self._before is not None:
            signal.signal(_SIGNAL, self._before)

    def current_limit_s(self) -> float:
        """The limit now, in seconds."""
        if time.monotonic() - self._last_end > self.limit_s:
            self._ended = 0
        least_s = max(_LEAST_S, self.limit_s / 4, 2 * self._longest_s)
        return min(self.limit_s, max(least_s, self.limit_s / 2.0**self._ended))

    def _watch(self) -> None:
        tick_s = min(_TICK_S, self.limit_s / 4, self.report_after_s / 4)
        watched: _Call | None = None
        told = False
        began = seen = time.monotonic()
        while not self._stop.wait(tick_s):
            running, now = self.running, time.monotonic()
            if running is not watched:
                if watched is not None and watched is not self._late:
                    self._longest_s = max(self._longest_s, seen - began)
                watched, told, began = running, False, now
            seen = now
            if running is None:
                continue
            limit_s = self.current_limit_s()
            if not told and now - began >= self.report_after_s:
                told = True
                self._report(running, now - began, limit_s)
            if self._ends and (now - began >= limit_s or running is self._late):
                self._end(running, limit_s)

    def _report(self, running: _Call, seconds: float, limit_s: float) -> None:
        limit = {"limit_s": round(limit_s, 1)} if self._ends else {}
        event(
            logger, logging.WARNING, "environment_waits",
            call=_described(running), seconds=round(seconds, 1), **limit,
        )  # fmt: skip

    def _end(self, running: _Call, limit_s: float) -> None:
        now = time.monotonic()
        if running is not self._late:
            self._late, self._late_after_s = running, limit_s
            self._ended, self._last_end = self._ended + 1, now
        elif now - self._last_signal < _REPEAT_S:
            return
        self._last_signal = now
        main = threading.main_thread().ident
        # A world may have a handler of its own.
        if _SIGNAL is not None and main and signal.getsignal(_SIGNAL) == self._interrupt:
            signal.pthread_kill(main, _SIGNAL)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Raise in the world's code; a call that has just returned is left alone."""
        late = self._late
        inside = frame is not None and frame.f_code is not TimeLimit.call.__code__
        if inside and late is not None and late is self.running:
            why = ""
            if self._late_after_s < self.limit_s:
                why = f" (of {self.limit_s:g} s, since others before it were ended)"
            raise _TooLong(
                f"{_described(late)} took longer than {self._late_after_s:g} s{why}; correct the "
                "environment, or raise step_timeout_s of its class, or --step-timeout of "
                "`agentgym serve`"
            )


def _described(call: _Call) -> str:
    what, task, turn = call
    return what + (f" {turn}" if turn else "") + ("" if task is None else f" of task {cut(task)!r}")
