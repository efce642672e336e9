"""The host of one session table, whose worlds step in the caller's thread."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from agentgym_env.text_env import TextEnv
from agentgym_env.wire import MAX_ITEMS
from agentgym_servers.host.batches import SLICE, Slices
from agentgym_servers.host.codec import Answer, CallBatch, Codec, Scrape
from agentgym_servers.host.metrics import Figures
from agentgym_servers.host.sessions import SessionTable, reap_period_s


class Host:
    """Serves one session table, whose worlds step in the caller's thread."""

    def __init__(
        self,
        table: SessionTable,
        *,
        token: str | None = None,
        max_body_bytes: int = 16 * 2**20,
        max_items: int = MAX_ITEMS,
        processes: int = 1,
    ) -> None:
        """`processes` is how many processes serve sessions like this one."""
        self.table = table
        self.codec = Codec(table, token=token, max_body_bytes=max_body_bytes, max_items=max_items)
        self._slices = Slices(table.answer, processes)
        self._reaping: asyncio.Task[None] | None = None

    def handle(
        self,
        method: str,
        path: str,
        query: str = "",
        body: bytes = b"",
        content_type: str = "",
        accept: str = "",
        authorization: str = "",
    ) -> Answer:
        """Answer one call. It never raises: whatever comes in, an answer goes out."""
        begun = self.codec.begin(method, path, query, body, content_type, accept, authorization)
        if isinstance(begun, CallBatch):
            return self.codec.finish(begun, self.table.answer(begun.route.path, begun.requests))
        if isinstance(begun, Scrape):
            return self.codec.show(begun, self.table.figures() + self.codec.figures)
        return begun

    async def ask(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch."""
        if len(requests) <= SLICE:
            return self.table.answer(path, requests)
        return await self._slices.answer(path, requests)

    async def figures(self) -> Figures:
        """What the server counted."""
        return self.table.figures() + self.codec.figures

    async def start(self) -> None:
        """Start ending idle sessions, and calls of worlds that take too long."""
        self.table.time_limit.start()
        self._reaping = asyncio.create_task(self._reap())

    async def stop(self) -> None:
        """End every session."""
        if self._reaping is not None:
            self._reaping.cancel()
            with suppress(asyncio.CancelledError):
                await self._reaping
        self.table.shutdown()
        self.table.time_limit.stop()

    async def _reap(self) -> None:
        period_s = reap_period_s(self.table.ttl_s)
        while True:
            await asyncio.sleep(period_s)
            self.table.reap()


def in_process_host(make_env: Callable[[], TextEnv], env_id: str) -> Host:
    """A host for this process only, without limits on sessions."""
    return Host(SessionTable(make_env, env_id=env_id, max_sessions=2**31, ttl_s=math.inf))
