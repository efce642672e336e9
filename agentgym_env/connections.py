"""Limits of a server's connections whose clients are not known yet; knows no protocol or framework.

Shared by the servers of environments and by the trainer's gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

try:
    import resource
except ImportError:  # Windows, where sockets are not files
    resource = None  # type: ignore[assignment]

MAX_HEAD_BYTES: Final = 65_536
"""The longest request line with header fields."""
HEAD_S: Final = 10.0
"""Seconds from the first byte of a request to the end of its header fields, and from there to the
first byte of its body."""
HELD_HEAD_BYTES: Final = 64 * 2**20
"""What the unfinished heads of a server's requests may hold together."""
BACKLOG: Final = 2048
"""How many connections may wait to be accepted. The kernel drops what is beyond, and tells its
client so only after a while."""
_MOST_FILES: Final = 2**20
"""Files that are reckoned with where there is no limit of them."""


def max_connections() -> int:
    """Most connections of a server: half of the files that the process may open."""
    return max(1, _max_files() // 2)


def accept_backlog() -> int:
    """How many connections may wait where all that wait are accepted at once, as by uvloop.

    They fit beside the program's files.
    """
    return max(1, min(BACKLOG, _max_files() // 4))


def accepted_at_once() -> int:
    """How many connections asyncio is to accept in a turn; it sees them some turns later only."""
    return max(1, accept_backlog() // 4)


def _max_files() -> int:
    if resource is None:
        return _MOST_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, _MOST_FILES)


class Connections:
    """The open connections of a server; where there are too many, one is closed for a new one.

    That is the one which has waited longest without a request that the server admits, or else the
    one which has been idle longest since. A connection with an admitted request in progress stays.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = max_connections() if most is None else most
        # Each by the time from which it waits, the longest waiting first.
        self._strangers: dict[asyncio.Transport, int] = {}
        self._idle: dict[asyncio.Transport, None] = {}
        self._busy: set[asyncio.Transport] = set()
        self._head_bytes = 0

    def __len__(self) -> int:
        return len(self._strangers) + len(self._idle) + len(self._busy)

    def opened(self, transport: asyncio.Transport) -> None:
        """There is a new connection."""
        self._strangers[transport] = 0
        while len(self) > self._most:
            waiting = self._strangers if len(self._strangers) > 1 else self._idle
            self._abort(next(iter(waiting), transport))

    def holds(self, transport: asyncio.Transport, head_bytes: int) -> None:
        """The unfinished head of a stranger's request has that many bytes so far."""
        if transport in self._strangers:
            self._head_bytes += head_bytes - self._strangers[transport]
            self._strangers[transport] = head_bytes
            while self._head_bytes > HELD_HEAD_BYTES:
                self._abort(next(t for t, size in self._strangers.items() if size))

    def admitted(self, transport: asyncio.Transport) -> None:
        """A request of the connection is admitted."""
        if self.closed(transport):
            self._busy.add(transport)

    def answered(self, transport: asyncio.Transport) -> None:
        """The request is answered; the connection waits for another one."""
        if transport in self._busy:
            self._busy.discard(transport)
            self._idle[transport] = None

    def closed(self, transport: asyncio.Transport) -> bool:
        """The connection is no more; whether it was there."""
        if transport in self._strangers:
            self._head_bytes -= self._strangers.pop(transport)
            return True
        if transport in self._idle:
            del self._idle[transport]
            return True
        known = transport in self._busy
        self._busy.discard(transport)
        return known

    def _abort(self, transport: asyncio.Transport) -> None:
        self.closed(transport)
        transport.abort()


class HeadLimit:
    """The bytes and seconds that a head of a request may take, on one connection after another.

    `reject` is told what is wrong. While `is_paused`, the server does not read, and what is awaited
    may have come.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reject: Callable[[str], None],
        is_paused: Callable[[], bool],
    ) -> None:
        self._loop, self._reject, self._is_paused = loop, reject, is_paused
        self.bytes = 0
        """Those of the head that is read."""
        self._ends: asyncio.TimerHandle | None = None

    def received(self, size: int) -> None:
        """More bytes of a head have come."""
        self.bytes += size

    def check(self) -> None:
        """Judge a head that has not ended."""
        if self.bytes > MAX_HEAD_BYTES:
            self._reject(f"The request's head is above {MAX_HEAD_BYTES} bytes.")
        elif self.bytes:
            self.wait("The request's head did not end")

    def wait(self, what: str) -> None:
        """Reject with `what` as the reason, unless `over` is called in time."""
        if self._ends is None:
            self._wait(f"{what} within {HEAD_S:g} seconds.")

    def _wait(self, message: str) -> None:
        self._ends = self._loop.call_later(HEAD_S, self._end, message)

    def _end(self, message: str) -> None:
        if self._is_paused():
            self._wait(message)
        else:
            self._reject(message)

    def over(self) -> None:
        """What was awaited has come."""
        self.bytes = 0
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None
