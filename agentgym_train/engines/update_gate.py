"""Lets an update of an engine's weights wait for running turns, and later turns for the update."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UpdateGate:
    """An update waits for running turns; later turns wait for the update."""

    def __init__(self) -> None:
        self._turns = 0
        self._updating = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """While a turn is sampled."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._updating)
            self._turns += 1
        try:
            yield
        finally:
            # Without an await in between, so that a cancelled turn is subtracted too.
            self._turns -= 1
            await asyncio.shield(self._notify())

    @asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """While the weights change."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._updating)
            self._updating = True
            await self._changed.wait_for(lambda: self._turns == 0)
        try:
            yield
        finally:
            self._updating = False
            await asyncio.shield(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
