"""Ends the processes that this one started when it has ended, also by a kill -9."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import IO, Final, cast

_GUARD: Final = """
import os, signal, sys
groups = set()
for line in sys.stdin.buffer:
    group = int(line)
    groups.add(group) if group > 0 else groups.discard(-group)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
"""
"""What the guard runs. The end of its input is the end of the process that it watches."""


class ProcessGuard:
    """A small process that outlives this one, and then kills the process groups that it guards."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        """Guard a process group."""
        with self._lock:
            self._groups.add(group)
            self._report(group)

    def remove(self, group: int) -> None:
        """Guard a process group no longer, since it has ended."""
        with self._lock:
            self._groups.discard(group)
            self._report(-group)

    def _report(self, number: int) -> None:
        if self._process is not None:
            try:
                self._write(number)
            except BrokenPipeError:
                self._end()
            else:
                return
        self._start()

    def _start(self) -> None:
        """Start the guard, and again if somebody has killed it."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Neither Ctrl-C nor what ends this process's group ends the guard.
            start_new_session=True,
        )
        atexit.register(self._end)
        self._write(*self._groups)

    def _write(self, *numbers: int) -> None:
        pipe = self._pipe()
        pipe.write("".join(f"{number}\n" for number in numbers).encode())
        pipe.flush()

    def _end(self) -> None:
        atexit.unregister(self._end)
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                self._pipe().close()
            self._process.wait()
            self._process = None

    def _pipe(self) -> IO[bytes]:
        assert self._process is not None
        return cast("IO[bytes]", self._process.stdin)


guard: Final = ProcessGuard()
"""The guard of this process."""


def end_group(leader: int) -> None:
    """Kill what is left of the process group of `leader`, which may have ended already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
