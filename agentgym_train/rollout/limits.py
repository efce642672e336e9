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

    Waiting for a limit counts as waiting for what is limited, and for an update of the weights as
    waiting for the policy.
    """

    def __init__(self, timeout_s: float = 0.0, episode: str = "") -> None:
        self.waited: dict[Party, float] = {"policy": 0.0, "environment": 0.0}
        self.episode = episode
        """Environment and task."""
        self.running: tuple[Party, str, float] | None = None
        """The call that is running: to whom, for what, and since when by the loop's clock."""
        self.timeout_s = timeout_s
        self._left_s = timeout_s

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[asyncio.Timeout]:
        """Raise `TimeoutError` within when the remaining time is over."""
        loop = asyncio.get_running_loop()
        when = loop.time() + self._left_s if self.timeout_s else None
        async with asyncio.timeout_at(when) as timeout:
            try:
                yield timeout
            finally:
                if when is not None:
                    self._left_s = when - loop.time()

    @contextmanager
    def waiting(self, party: Party) -> Iterator[None]:
        """Count the time within."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.waited[party] += time.monotonic() - began


class Limiter:
    """Limits the concurrent calls of one kind."""

    def __init__(self, limit: int, party: Party) -> None:
        self._slots = asyncio.Semaphore(limit) if limit else None
        self._party: Party = party
        self.waiting = 0
        """Episodes in a call or waiting for a slot."""

    @asynccontextmanager
    async def call(self, deadline: Deadline, what: str = "a step") -> AsyncIterator[None]:
        """Enter when a slot is free."""
        self.waiting += 1
        with deadline.waiting(self._party):
            try:
                if self._slots is not None:
                    await self._slots.acquire()
                try:
                    deadline.running = (self._party, what, asyncio.get_running_loop().time())
                    yield
                finally:
                    deadline.running = None
                    if self._slots is not None:
                        self._slots.release()
            finally:
                self.waiting -= 1


class ConcurrencyLimits:
    """Limits all calls of the episodes on one event loop."""

    def __init__(self, limits: RolloutLimits | None = None) -> None:
        self.limits = limits or RolloutLimits()
        self.policy = Limiter(self.limits.engine_concurrency, "policy")
        self.environment = Limiter(self.limits.env_concurrency, "environment")
        self.turns = 0
        """Turns taken so far."""
        self.tokens = 0
        """Tokens sampled so far."""
        self._deadlines: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._reported: tuple[float, float] = (0.0, 0.0)
        """When the longest call that was reported began, and after how long it was."""

    @contextmanager
    def episode(self, name: str = "") -> Iterator[Deadline]:
        """The deadline of an episode; `name` is for the log."""
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
