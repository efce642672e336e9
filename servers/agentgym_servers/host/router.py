"""The router: sessions live in several processes; each call reaches the one that has its own.

A session's name begins with the number of its process, so that any process of a server can be
asked for any session, and no balancer in front has to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, Protocol

from msgspec import UNSET

from agentgym_env.wire import CloseReply, CreateReply
from agentgym_servers.host import routes
from agentgym_servers.host.batches import SLICE, ShortestFirst
from agentgym_servers.host.codec import Codec
from agentgym_servers.host.metrics import Figures

_SEPARATOR = "."
_SMALL = 32 * SLICE
"""Items of a batch whose replies may be held besides those of the large ones."""
_ELSEWHERE = frozenset({"too_many_sessions", "shutting_down"})
"""Why a process may refuse a session that another can take."""


class Partition(Protocol):
    """A process with a part of the sessions."""

    async def ask(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch, in order. It never raises: a process that died is answered."""
        ...

    async def figures(self) -> Figures:
        """What it counted."""
        ...

    async def start(self) -> None:
        """Get ready."""
        ...

    async def stop(self) -> None:
        """End its sessions."""
        ...


class Router:
    """Serves several partitions of sessions; counts the codec if no partition does."""

    def __init__(
        self,
        codec: Codec,
        partitions: Sequence[Partition],
        *,
        count_codec: bool,
        concurrent: int = 2,
    ) -> None:
        """`concurrent` large batches are answered at a time."""
        self.codec = codec
        self._partitions = list(partitions)
        self._count_codec = count_codec
        self._next = 0
        self._large = ShortestFirst(concurrent)

    async def ask(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch of the route at `path`, in order.

        A few large batches are answered at a time, as their replies are held until all are there.
        """
        if len(requests) <= _SMALL:
            return await self._ask(path, requests)
        async with self._large.turn(len(requests)):
            return await self._ask(path, requests)

    async def _ask(self, path: str, requests: Sequence[Any]) -> list[Any]:
        if path == routes.SESSIONS.path:
            return await self._create(requests)
        if path == routes.CLOSE.path and any(_is_key(r.session) for r in requests):
            return await self._close(requests)
        owners = [self._owner(request.session) for request in requests]
        return await self._ask_each(path, requests, owners)

    async def figures(self) -> Figures:
        """What the whole server counted."""
        figures = await asyncio.gather(*(partition.figures() for partition in self._partitions))
        own = self.codec.figures if self._count_codec else Figures()
        return reduce(add, figures, own)

    async def start(self) -> None:
        """Start every partition."""
        await asyncio.gather(*(partition.start() for partition in self._partitions))

    async def stop(self) -> None:
        """Stop every partition."""
        await asyncio.gather(*(partition.stop() for partition in self._partitions))

    async def _create(self, requests: Sequence[Any]) -> list[CreateReply]:
        """Spread new sessions evenly; what a partition refuses is spread over the others.

        A partition that refused one session is not asked again. If none is left, `shutting_down`
        takes precedence over `too_many_sessions`: a process that restarts will take sessions.
        """
        count = len(self._partitions)
        # Kept here: calls that run beside this one must not choose the same partition again.
        first = self._next
        self._next = (first + len(requests)) % count
        candidates = [(first + i) % count for i in range(count)]
        replies: list[Any] = [None] * len(requests)
        waiting = list(range(len(requests)))
        restarting: CreateReply | None = None
        while waiting and candidates:
            owners = [candidates[i % len(candidates)] for i in range(len(waiting))]
            created = await self._ask_each(
                routes.SESSIONS.path, [requests[place] for place in waiting], owners
            )
            for place, owner, reply in zip(waiting, owners, created, strict=True):
                replies[place] = reply
                if _is_refused(reply) and owner in candidates:
                    candidates.remove(owner)
                if _is_refused(reply) and reply.error.code == "shutting_down":
                    restarting = reply
            waiting = [place for place in waiting if _is_refused(replies[place])]
        for place in waiting:
            replies[place] = restarting or replies[place]
        return replies

    async def _close(self, requests: Sequence[Any]) -> list[CloseReply]:
        """End sessions, some by the client's key, which does not name a partition."""
        every = await asyncio.gather(
            *(partition.ask(routes.CLOSE.path, requests) for partition in self._partitions)
        )
        return [
            CloseReply(request.session, any(reply.closed for reply in replies))
            for request, replies in zip(requests, zip(*every, strict=True), strict=True)
        ]

    async def _ask_each(
        self, path: str, requests: Sequence[Any], owners: Sequence[int]
    ) -> list[Any]:
        places: dict[int, list[int]] = {}
        for place, owner in enumerate(owners):
            places.setdefault(owner, []).append(place)
        replies: list[Any] = [None] * len(requests)

        async def ask_one(owner: int, where: list[int]) -> None:
            asked = [requests[place] for place in where]
            for place, reply in zip(
                where, await self._partitions[owner].ask(path, asked), strict=True
            ):
                replies[place] = reply

        if len(places) == 1:
            await ask_one(*next(iter(places.items())))
        else:
            await asyncio.gather(*(ask_one(owner, where) for owner, where in places.items()))
        return replies

    def _owner(self, session: str) -> int:
        """The partition of a session; the first one rejects an unknown name."""
        number = session.partition(_SEPARATOR)[0]
        if number.isascii() and number.isdigit() and len(number) < 6:
            index = int(number)
            if index < len(self._partitions):
                return index
        return 0


def name_prefix(index: int) -> str:
    """The prefix of the session names of a partition."""
    return f"{index}{_SEPARATOR}"


def share_of(total: int, index: int, count: int) -> int:
    """The share of `total` sessions that partition `index` of `count` may open."""
    return total // count + (index < total % count)


def _is_key(session: str) -> bool:
    return _SEPARATOR not in session


def _is_refused(reply: CreateReply) -> bool:
    return reply.error is not UNSET and reply.error.code in _ELSEWHERE
