"""Limits of an episode's time and of concurrent calls; knows nothing about what is called."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Literal

from agentgym_train.config.policy import RolloutLimits

logger = logging.getLogger(__name__)

Party = Literal["policy", "environment"]

REPORT_AFTER_S: Final = 20.0
"""A call to an environment that takes longer is logged."""
_NAMED = 3
"""Calls that such a line names."""


class Deadline:
    """The deadline of an episode, and how long it waited for policy and environment.

    Time does not count while calls are paused. Waiting for a limit counts as waiting for what is
    limited.
    """

    def __init__(self, timeout_s: float = 0.0, episode: str = "") -> None:
        self.waited: dict[Party, float] = {"policy": 0.0, "environment": 0.0}
        self.episode = episode
        """Environment and task."""
        self.running: tuple[Party, str, float] | None = None
        """The call that is running: to whom, for what, and since when by the loop's clock."""
        self.timeout_s = timeout_s
        self._left_s = timeout_s
        self._timeout: asyncio.Timeout | None = None
        self._held = False

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[asyncio.Timeout]:
        """Raise `TimeoutError` within when the remaining time is over."""
        began = asyncio.get_running_loop().time()
        when = began + self._left_s if self.timeout_s and not self._held else None
        async with asyncio.timeout_at(when) as self._timeout:
            try:
                yield self._timeout
            finally:
                self.pause()
                self._timeout, self._held = None, False

    @contextmanager
    def waiting(self, party: Party) -> Iterator[None]:
        """Count the time within."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.waited[party] += time.monotonic() - began

    def pause(self) -> None:
        """Stop the clock."""
        if self._timeout is None or not self.timeout_s or self._held:
            return
        self._held = True
        when = self._timeout.when()
        if when is not None and not self._timeout.expired():
            self._left_s = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def resume(self) -> None:
        """Restart the clock."""
        if self._timeout is None or not self._held:
            return
        self._held = False
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)


class Limiter:
    """Limits the concurrent calls of one kind."""

    def __init__(self, limit: int, concurrency_limits: ConcurrencyLimits, party: Party) -> None:
        self._slots = asyncio.Semaphore(limit) if limit else None
        self._concurrency_limits = concurrency_limits
        self._party: Party = party
        self.waiting = 0
        """Episodes in a call or waiting for a slot."""

    @asynccontextmanager
    async def call(self, deadline: Deadline, what: str = "a step") -> AsyncIterator[None]:
        """Enter when a slot is free and calls are not paused."""
        self.waiting += 1
        with deadline.waiting(self._party):
            try:
                if self._slots is not None:
                    await self._slots.acquire()
                try:
                    async with self._concurrency_limits.running():
                        deadline.running = (self._party, what, asyncio.get_running_loop().time())
                        yield
                finally:
                    deadline.running = None
                    if self._slots is not None:
                        self._slots.release()
            finally:
                self.waiting -= 1


class ConcurrencyLimits:
    """Limits all calls of the episodes on one event loop.

    Calls can be paused: then no call is running and none begins, so that weights can change in the
    middle of episodes. After `resume` their next turns use the new weights.
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
        self._timer: asyncio.TimerHandle | None = None
        self._reported: tuple[float, float] = (0.0, 0.0)
        """When the longest call that was reported began, and after how long it was."""

    @contextmanager
    def episode(self, name: str = "") -> Iterator[Deadline]:
        """The deadline of an episode, which pauses with the calls; `name` is for the log."""
        deadline = Deadline(self.limits.episode_timeout_s, name)
        if self._timer is None:
            self._look_later()
        self._deadlines.add(deadline)
        try:
            yield deadline
        finally:
            self._deadlines.discard(deadline)
            if self._timer is not None and not self._deadlines:
                self._timer.cancel()
                self._timer = None

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REPORT_AFTER_S / 20, self._look)

    def _look(self) -> None:
        """Log which environment is waited for: after 20 s, 40 s, 80 s and so on."""
        now = asyncio.get_running_loop().time()
        late = sorted(
            (since, f"{what} of {deadline.episode}")
            for deadline in self._deadlines
            for party, what, since in filter(None, [deadline.running])
            if party == "environment" and now - since >= REPORT_AFTER_S
        )
        if late:
            since, after_s = late[0][0], REPORT_AFTER_S
            if since == self._reported[0]:
                after_s = 2 * self._reported[1]
            if now - since >= after_s:
                self._reported = (since, now - since)
                names = list(dict.fromkeys(name for _, name in late))
                more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
                logger.warning(
                    "waiting for the environment for %.0f s: %s%s",
                    now - since, ", ".join(names[:_NAMED]), more,
                )  # fmt: skip
        self._look_later()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Wait until calls are not paused, then count one call."""
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

    async def pause(self) -> None:
        """Let no call begin, and wait for the running ones."""
        self._open.clear()
        for deadline in self._deadlines:
            deadline.pause()
        await self._idle.wait()

    def resume(self) -> None:
        """Let calls begin again."""
        if not self._open.is_set():
            for deadline in self._deadlines:
                deadline.resume()
            self._open.set()
