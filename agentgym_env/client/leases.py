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
from agentgym_env.wire import RenewRequest, SessionRequest, encode

logger = logging.getLogger(__name__)

LEASE_S: Final = 40.0
"""Seconds after the last renewal until a session ends."""
RENEW_EVERY_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
_EXIT_S: Final = 2.0
"""Most seconds for which the end of a program waits for one server."""
_ALL_EXIT_S: Final = 5.0
"""Seconds after which it asks no further server."""
_MAX_ITEMS: Final = 256
"""Sessions a call, which any server accepts in one body."""


class Lease:
    """The name of an open session, as long as somebody has its object."""

    __slots__ = ("is_held", "name", "owner")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_held = True
        """Whether the session is to be kept: it is neither closed nor lost."""
        self.owner: weakref.ref[object] | None = None


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
        self._mail: queue.SimpleQueue[Lease] = queue.SimpleQueue()
        """New leases, and those whose owners were collected."""
        self._held: set[Lease] = set()

    def add(self, owner: object, made: Lease) -> None:
        """Keep a lease until its owner is collected."""
        mail = self._mail
        made.owner = weakref.ref(owner, lambda _: mail.put(made))
        mail.put(made)

    def run(self) -> None:
        """Renew leases until none is left for a while."""
        transport = self._transport(_TIMEOUT_S)
        renew_at = time.monotonic() + RENEW_EVERY_S
        while True:
            arrived = [each for each in self._read_mail(renew_at) if each.is_held]
            forgotten = {each for each in arrived if each.owner is None or each.owner() is None}
            new = set(arrived) - forgotten
            self._held = {each for each in self._held if each.is_held} - forgotten | new
            _close(transport, forgotten)
            is_due = time.monotonic() >= renew_at
            _renew(transport, self._held if is_due else new)
            if is_due:
                renew_at = time.monotonic() + RENEW_EVERY_S
                if self._is_done():
                    break
        transport.close()

    def close_all(self) -> None:
        """Close the sessions that are still open, at the end of the program."""
        transport = self._transport(_EXIT_S)
        _close(transport, {each for each in [*self._held, *self._unread()] if each.is_held})
        transport.close()

    def _transport(self, timeout_s: float) -> HttpTransport:
        address, token = self._key
        return HttpTransport(address, token=token, timeout_s=timeout_s, retries=0)

    def _read_mail(self, until: float) -> list[Lease]:
        """What has arrived; waits for the first at most until then."""
        try:
            first = self._mail.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return []
        return [first, *self._unread()]

    def _unread(self) -> list[Lease]:
        found: list[Lease] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._mail.get_nowait())
        return found

    def _is_done(self) -> bool:
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
    asked = []
    for each in forgotten:
        each.is_held = False
        asked.append(SessionRequest(each.name))
    _send(transport, "/v1/close", asked)


def _send(transport: HttpTransport, path: str, asked: Sequence[Any]) -> None:
    """Send requests whose replies do not matter: a session that is gone needs neither."""
    for start in range(0, len(asked), _MAX_ITEMS):
        try:
            transport.send(Call(path, encode(asked[start : start + _MAX_ITEMS])))
        except EnvironmentLost as lost:
            logger.debug("%s was not answered: %s", path, lost)
            return


def _close_all() -> None:
    until = time.monotonic() + _ALL_EXIT_S
    for keeper in list(_keepers.values()):
        if time.monotonic() < until:
            keeper.close_all()


def _start_anew() -> None:
    """Forget, in a forked process, the sessions of its parent."""
    global _lock
    _lock = threading.Lock()
    _keepers.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_start_anew)
