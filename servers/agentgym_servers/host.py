"""The host: one session table and the desk before it; knows nothing about sockets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from agentgym_env.text_env import TextEnv
from agentgym_env.wire import MAX_ITEMS
from agentgym_servers.desk import Answer, Batch, Desk, Scrape
from agentgym_servers.metrics import Figures
from agentgym_servers.sessions import SessionTable

_REAP_EVERY_S = (1.0, 30.0)


class Host:
    """Serves one session table, whose worlds step in the caller's thread."""

    def __init__(
        self,
        table: SessionTable,
        *,
        token: str | None = None,
        max_body_bytes: int = 16 * 2**20,
        max_items: int = MAX_ITEMS,
    ) -> None:
        self.table = table
        self.desk = Desk(table, token=token, max_body_bytes=max_body_bytes, max_items=max_items)
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
        begun = self.desk.begin(method, path, query, body, content_type, accept, authorization)
        if isinstance(begun, Batch):
            return self.desk.finish(begun, self.table.answer(begun.route.path, begun.requests))
        if isinstance(begun, Scrape):
            return self.desk.show(begun, self.table.figures() + self.desk.figures)
        return begun

    async def ask(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch."""
        return self.table.answer(path, requests)

    async def figures(self) -> Figures:
        """What the server counted."""
        return self.table.figures() + self.desk.figures

    async def start(self) -> None:
        """Begin to end idle sessions."""
        self._reaping = asyncio.create_task(self._reap())

    async def stop(self) -> None:
        """End every session."""
        if self._reaping is not None:
            self._reaping.cancel()
            with suppress(asyncio.CancelledError):
                await self._reaping
        self.table.shutdown()

    async def _reap(self) -> None:
        period_s = reap_period_s(self.table.ttl_s)
        while True:
            await asyncio.sleep(period_s)
            self.table.reap()


def in_process_host(make_env: Callable[[], TextEnv], env_id: str) -> Host:
    """A host for this process alone: nobody else can take its sessions or leave them behind."""
    return Host(SessionTable(make_env, env_id=env_id, max_sessions=2**31, ttl_s=math.inf))


def reap_period_s(ttl_s: float) -> float:
    """How often to look for idle sessions."""
    shortest, longest = _REAP_EVERY_S
    return min(longest, max(shortest, ttl_s / 4))
