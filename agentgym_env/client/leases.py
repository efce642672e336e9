"""Leases: sessions end with their client, however it ends.

A thread for each server renews the leases of this process's sessions: those of a process that was
killed run out on the server within a minute. It closes the sessions whose objects were collected
without `close`, and at the end of the program those that are still open.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final

from agentgym_env.client.transports import AsyncHttpTransport, Call, HttpTransport
from agentgym_env.errors import EnvironmentLost
from agentgym_env.wire import STATUS, RenewRequest, SessionRequest, encode

logger = logging.getLogger(__name__)

LEASE_S: Final = 45.0
"""Seconds after the last renewal until a session ends."""
RENEW_EVERY_S: Final = 10.0
_TIMEOUT_S: Final = 20.0
_EXIT_S: Final = 5.0
"""Most seconds for which the end of a program waits for servers."""
_MAX_ITEMS: Final = 256
"""Sessions a call. A server that accepts fewer answers 413, and gets half."""


class Lease:
    """The name of an open session, as long as somebody has its object."""

    __slots__ = ("is_held", "name", "owner")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_held = True
        """Whether the session is to be kept: it is neither closed nor lost."""
        self.owner: weakref.ref[object] | None = None

    @property
    def is_forgotten(self) -> bool:
        """Whether its owner was collected."""
        return self.owner is None or self.owner() is None


def lease(owner: object, name: str, transport: object) -> Lease | None:
    """The lease of a session at an HTTP server, held until `owner` is collected; else None."""
    if not isinstance(transport, HttpTransport | AsyncHttpTransport):
        return None
    made = Lease(name)
    key = (transport.address, transport.token)
    with _lock:
        keeper = _keepers.get(key)
        if keeper is None:
            keeper = _keepers[key] = _Keeper(*key)
            keeper.start()
        keeper.add(owner, made)
    return made


class _Keeper(threading.Thread):
    """Renews the leases at one server, and closes the sessions that were forgotten."""

    def __init__(self, address: str, token: str | None) -> None:
        super().__init__(name=f"leases at {address}", daemon=True)
        self._key = (address, token)
        # Its `put` may be called by the garbage collector, in the middle of anything.
        self._mail: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        """New leases, and those whose owners were collected; None at the end of the program."""
        self._held: set[Lease] = set()

    def add(self, owner: object, made: Lease) -> None:
        """Keep a lease until its owner is collected."""
        mail = self._mail
        made.owner = weakref.ref(owner, lambda _: mail.put(made))
        mail.put(made)

    def end(self) -> None:
        """Let the thread close what is open, and end; does not wait for it."""
        self._mail.put(None)

    def run(self) -> None:
        """Renew leases until none is left for a while."""
        address, token = self._key
        transport = HttpTransport(address, token=token, timeout_s=_TIMEOUT_S, retries=0)
        renew_at = time.monotonic() + RENEW_EVERY_S
        is_done = False
        while not is_done:
            arrived = self._read_mail(renew_at)
            new = {each for each in arrived if each is not None and each.is_held}
            is_done = None in arrived
            self._held = {each for each in self._held | new if each.is_held}
            forgotten = self._held if is_done else {each for each in new if each.is_forgotten}
            _close(transport, forgotten)
            self._held = self._held - forgotten
            if not is_done and time.monotonic() < renew_at:
                _renew(transport, new - forgotten)
            elif not is_done:
                _renew(transport, self._held)
                renew_at = time.monotonic() + RENEW_EVERY_S
                is_done = self._has_nothing_left()
        transport.close()

    def _read_mail(self, until: float) -> list[Lease | None]:
        """What has arrived; waits for the first at most until then."""
        found: list[Lease | None] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._mail.get(timeout=max(0.0, until - time.monotonic())))
            while True:
                found.append(self._mail.get_nowait())
        return found

    def _has_nothing_left(self) -> bool:
        """Whether nothing is left to keep; a later lease then gets another keeper."""
        with _lock:
            if self._held or not self._mail.empty():
                return False
            if _keepers.get(self._key) is self:
                del _keepers[self._key]
            return True


_lock = threading.Lock()
_keepers: dict[tuple[str, str | None], _Keeper] = {}


def _renew(transport: HttpTransport, held: Iterable[Lease]) -> None:
    _send(transport, "/v1/renew", [RenewRequest(each.name, LEASE_S) for each in held])


def _close(transport: HttpTransport, forgotten: Iterable[Lease]) -> None:
    # Until they are closed they count as held: the program may end meanwhile.
    _send(transport, "/v1/close", [SessionRequest(each.name) for each in forgotten])
    for each in forgotten:
        each.is_held = False


def _send(transport: HttpTransport, path: str, asked: Sequence[Any]) -> None:
    """Send requests whose replies do not matter: a session that is gone needs neither."""
    for start in range(0, len(asked), _MAX_ITEMS):
        part = asked[start : start + _MAX_ITEMS]
        try:
            answer = transport.send(Call(path, encode(part)))
        except EnvironmentLost as lost:
            logger.debug("%s was not answered: %s", path, lost)
            return
        if answer.status == STATUS["too_many_items"] and len(part) > 1:
            half = len(part) // 2
            _send(transport, path, part[:half])
            _send(transport, path, part[half:])


def _end_all() -> None:
    """Close the sessions that are open at the end of the program."""
    with _lock:
        keepers = list(_keepers.values())
    until = time.monotonic() + _EXIT_S
    for keeper in keepers:
        keeper.end()
    for keeper in keepers:
        keeper.join(max(0.0, until - time.monotonic()))


def _start_anew() -> None:
    """Forget, in a forked process, the sessions of its parent."""
    global _lock
    _lock = threading.Lock()
    _keepers.clear()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_start_anew)
