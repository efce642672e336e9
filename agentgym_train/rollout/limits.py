"""Concurrency limits: how many turns are generated and how many environments step at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

from agentgym_train.config.values import RolloutLimits

Party = Literal["policy", "environment"]


class Deadline:
    """An episode's deadline, and how long it waited for whom. It stands still while traffic rests.

    Queueing for a limit counts as waiting for what is limited.
    """

    def __init__(self, timeout_s: float = 0.0) -> None:
        self.waited: dict[Party, float] = {"policy": 0.0, "environment": 0.0}
        self.timeout_s = timeout_s
        self._left_s = timeout_s
        self._timeout: asyncio.Timeout | None = None
        self._held = False

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[asyncio.Timeout]:
        """Raise `TimeoutError` within when what is left of the time is over."""
        began = asyncio.get_running_loop().time()
        when = began + self._left_s if self.timeout_s and not self._held else None
        async with asyncio.timeout_at(when) as self._timeout:
            try:
                yield self._timeout
            finally:
                self.hold()
                self._timeout, self._held = None, False

    @contextmanager
    def waiting(self, party: Party) -> Iterator[None]:
        """Count the time within."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.waited[party] += time.monotonic() - began

    def hold(self) -> None:
        """Stand still."""
        if self._timeout is None or not self.timeout_s or self._held:
            return
        self._held = True
        when = self._timeout.when()
        if when is not None and not self._timeout.expired():
            self._left_s = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def go_on(self) -> None:
        """Run again."""
        if self._timeout is None or not self._held:
            return
        self._held = False
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)


class Limiter:
    """The calls of one kind: how many are under way, and how many may be."""

    def __init__(self, limit: int, concurrency_limits: ConcurrencyLimits, party: Party) -> None:
        self._slots = asyncio.Semaphore(limit) if limit else None
        self._concurrency_limits = concurrency_limits
        self._party: Party = party
        self.waiting = 0
        """Episodes that wait here, in a call or for a place."""

    @asynccontextmanager
    async def call(self, deadline: Deadline) -> AsyncIterator[None]:
        """Make a call within, once there is a place and traffic flows."""
        self.waiting += 1
        with deadline.waiting(self._party):
            try:
                if self._slots is not None:
                    await self._slots.acquire()
                try:
                    async with self._concurrency_limits.flowing():
                        yield
                finally:
                    if self._slots is not None:
                        self._slots.release()
            finally:
                self.waiting -= 1


class ConcurrencyLimits:
    """All calls of the episodes under way on one event loop.

    It can be brought to rest: then no call is under way and none begins, so weights can change
    while episodes are in the middle; they go on afterwards, each with a turn of the new weights.
    """

    def __init__(self, limits: RolloutLimits | None = None) -> None:
        self.limits = limits or RolloutLimits()
        self.policy = Limiter(self.limits.engine_concurrency, self, "policy")
        self.environment = Limiter(self.limits.env_concurrency, self, "environment")
        self.turns = 0
        """Turns taken so far."""
        self.tokens = 0
        """Tokens sampled so far."""
        self._calls = 0
        self._deadlines: set[Deadline] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def episode(self) -> Iterator[Deadline]:
        """An episode's deadline, kept while traffic rests."""
        deadline = Deadline(self.limits.episode_timeout_s)
        self._deadlines.add(deadline)
        try:
            yield deadline
        finally:
            self._deadlines.discard(deadline)

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Within, one call is under way."""
        while not self._open.is_set():
            await self._open.wait()
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def rest(self) -> None:
        """Let no call begin, and wait for those under way."""
        self._open.clear()
        for deadline in self._deadlines:
            deadline.hold()
        await self._idle.wait()

    def flow(self) -> None:
        """Let calls begin again."""
        if not self._open.is_set():
            for deadline in self._deadlines:
                deadline.go_on()
            self._open.set()
