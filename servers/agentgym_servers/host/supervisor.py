"""Starts the worker processes, replaces those that die or hang, and ends them all."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import IO, Final, cast

import msgspec

from agentgym_env.errors import ServerStartFailed
from agentgym_env.launch import child_environment
from agentgym_env.process_guard import end_group, guard
from agentgym_servers.host.cluster import Orders
from agentgym_servers.host.heartbeat import READY, SILENT_AFTER_S, SILENT_START_S
from agentgym_servers.host.logs import event
from agentgym_servers.host.serving import GRACE_S, listen
from agentgym_servers.host.settings import ServeSettings

logger = logging.getLogger(__name__)

MAX_FAILED_STARTS: Final = 5
"""Times in a row that a worker may end by itself before it is ready, until the server stops."""

_CHECK_EVERY_S = 0.1
_LONGEST_CHECK_S = 0.5
"""A longer pause between two checks counts as this: this process itself was stopped."""
_SHORT_LIFE_S = 10.0
"""A worker that ends sooner is started again after a pause, which doubles each time."""
_MIN_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_KILLED: Final = frozenset({-signal.SIGKILL, -signal.SIGTERM})
"""Exit statuses of a worker that somebody else ended: it is not the worker that fails."""


def run_cluster(
    settings: ServeSettings, when_ready: Callable[[int], None], *, follow_parent: bool = False
) -> None:
    """Serve by `settings.workers` processes until SIGTERM or SIGINT; report the port.

    With `follow_parent` it also stops when the parent's end of stdin closes. Raises
    `ServerStartFailed` if a worker does not start: at once where it has never been ready, else
    after `MAX_FAILED_STARTS` attempts.
    """
    # Taken alone first: sharing a port with another server would mix their sessions up.
    with listen(settings.host, settings.port) as probe:
        port = probe.getsockname()[1]
    settings = msgspec.structs.replace(settings, port=port)
    # A list and not an event, whose lock the interrupted code may hold.
    received: list[int] = []

    def stop(signum: int, frame: FrameType | None) -> None:
        received.append(signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    if follow_parent:
        threading.Thread(target=_follow_parent, args=(received,), daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="agentgym-") as folder:
        members = [_Member(Orders(settings, index, folder)) for index in range(settings.workers)]
        try:
            _supervise(members, received, lambda: when_ready(port))
        finally:
            for member in members:
                member.ask_to_end()
            for member in members:
                member.end()


def _follow_parent(received: list[int]) -> None:
    # Not sys.stdin.buffer: Python aborts if a thread is inside a buffered reader when it exits.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    received.append(signal.SIGTERM)


def _supervise(
    members: Sequence[_Member], received: Sequence[int], when_ready: Callable[[], None]
) -> None:
    """Restart what ends until a signal is received; report once that all are ready."""
    reported = False
    before = time.monotonic()
    while not received:
        now = time.monotonic()
        for member in members:
            member.check(min(now - before, _LONGEST_CHECK_S))
        before = now
        if not reported and all(member.ready for member in members):
            when_ready()
            reported = True
        time.sleep(_CHECK_EVERY_S)


class _Member:
    """One process of the cluster, and those that replace it."""

    def __init__(self, orders: Orders) -> None:
        self.ready = False
        """Whether the process that runs now serves."""
        self._orders = orders
        self._was_ready = False
        self._failed_starts = 0
        self._pause_s = 0.0
        self._restart_at: float | None = None
        self._silent_s = 0.0
        self._start()

    def check(self, passed_s: float) -> None:
        """Check it, `passed_s` after the last time: whether it is ready, and whether it beats.

        One that has ended or hangs is replaced, and its sessions are lost. It waits for a process
        only while that is killed. Raises `ServerStartFailed`.
        """
        if self._restart_at is not None:
            if time.monotonic() >= self._restart_at:
                self._restart_at = None
                self._start()
            return
        heard = self._hear()
        self._silent_s = 0.0 if heard else self._silent_s + passed_s
        if READY in heard:
            if self._was_ready:
                event(logger, logging.INFO, "worker_back", worker=self._orders.index)
            self.ready = self._was_ready = True
            self._failed_starts = 0
        status = self._process.poll()
        if status is not None:
            self._plan_restart(status)
        elif self._silent_s > (SILENT_AFTER_S if self.ready else SILENT_START_S):
            event(
                logger, logging.ERROR, "worker_hangs",
                worker=self._orders.index, silent_s=round(self._silent_s, 1),
            )  # fmt: skip
            end_group(self._process.pid)
            self._plan_restart(self._process.wait(), hung=True)

    def ask_to_end(self) -> None:
        """Let it finish the steps under way."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for its end; after a while, make it."""
        try:
            self._process.wait(GRACE_S + 2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._clear()

    def _plan_restart(self, status: int, *, hung: bool = False) -> None:
        name = f"worker {self._orders.index} of {self._orders.settings.env_id}"
        event(logger, logging.ERROR, "worker_lost", worker=self._orders.index, exit_status=status)
        if not self._was_ready:
            raise ServerStartFailed(
                f"{name} did not start (exit status {status}); see the log above"
            )
        if not self.ready and (hung or status not in _KILLED):
            self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise ServerStartFailed(
                f"{name} ended {self._failed_starts} times in a row before it was ready "
                f"(exit status {status}); see the lines above"
            )
        now = time.monotonic()
        short = now - self._started_at < _SHORT_LIFE_S
        self._pause_s = min(max(2 * self._pause_s, _MIN_PAUSE_S), _MAX_PAUSE_S) if short else 0.0
        self._restart_at = now + self._pause_s
        self.ready = False
        self._clear()

    def _hear(self) -> bytes:
        try:
            return os.read(cast("IO[bytes]", self._process.stdout).fileno(), 64)
        except BlockingIOError:
            return b""

    def _clear(self) -> None:
        """What it has started ends with it: a copy of it would hold its port and its pipes."""
        end_group(self._process.pid)
        guard.remove(self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            # What it did not read before it ended is still to be written.
            with contextlib.suppress(BrokenPipeError):
                cast("IO[bytes]", pipe).close()

    def _start(self) -> None:
        self._started_at = time.monotonic()
        self._silent_s = 0.0
        self._process = subprocess.Popen(
            # -P: the working directory must not shadow the standard library.
            [sys.executable, "-P", "-m", "agentgym_servers.host.cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            # Ctrl-C is the supervisor's to handle.
            start_new_session=True,
        )
        guard.add(self._process.pid)
        os.set_blocking(cast("IO[bytes]", self._process.stdout).fileno(), False)
        stdin = cast("IO[bytes]", self._process.stdin)
        # It may already have been killed; the next check sees that.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(msgspec.json.encode(self._orders) + b"\n")
            stdin.flush()
