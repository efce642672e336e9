"""Large batches: answered a few items at a time, so that no client waits for another's batch."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from agentgym_env.wire import CloseReply, CreateReply, StepReply, WireError
from agentgym_servers.host import routes

_GIVES: Final = {route.path: route.gives for route in routes.ROUTES if route.takes is not None}

SLICE: Final = 8
"""Items of a batch that are answered without a pause; fewer where they take long."""
PAUSE_AFTER_S: Final = 0.005
"""Others are answered after so many seconds."""
_ITERATIONS: Final = 4
"""Iterations of the event loop in each pause: it may accept only one connection in each."""
MAX_REPLY_CHARS: Final = 16 * 2**20
"""Characters of text after which the further items of a batch are rejected."""


class ShortestFirst:
    """Lets `places` large batches run at a time; of those that wait, the one with least to do.

    So a batch waits neither for those that have more left than it has, nor for their number.
    """

    def __init__(self, places: int = 1) -> None:
        self._free = places
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def turn(self, left: int) -> Turn:
        """A context in which a batch with so many items may run."""
        return Turn(self, left)

    @property
    def shortest(self) -> float:
        """The fewest items of a batch that waits; infinite if none does."""
        while self._waiting and self._waiting[0][2].done():
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else inf

    async def take(self, left: int) -> None:
        """Wait for a place."""
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (left, next(self._numbers), place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """Pass the place on to the shortest batch that waits."""
        if self.shortest < inf:
            heapq.heappop(self._waiting)[2].set_result(None)
        else:
            self._free += 1


class Turn:
    """The place of one batch."""

    def __init__(self, places: ShortestFirst, left: int) -> None:
        self._places = places
        self._left = left
        self._held = False

    async def __aenter__(self) -> Turn:
        """Wait for a place."""
        await self._places.take(self._left)
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the place back."""
        if self._held:
            self._places.give_back()

    async def give_way(self, left: int) -> None:
        """Let a batch with fewer than `left` items go first."""
        if self._places.shortest < left:
            self._held = False
            self._places.give_back()
            await self._places.take(left)
            self._held = True


class Slices:
    """Answers batches in the event loop; between two slices of a large one, others are answered.

    Of large batches, the one with the fewest items left goes first. An item that was rejected
    because of the size of the other replies was not carried out, and can be sent again.
    """

    def __init__(
        self, answer: Callable[[str, Sequence[Any]], list[Any]], processes: int = 1
    ) -> None:
        """`processes` answer parts of each batch."""
        self._answer = answer
        self._processes = processes
        self._large = ShortestFirst()

    async def answer(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch of the route at `path`, in order."""
        if len(requests) <= SLICE:
            return self._answer(path, requests)
        async with self._large.turn(len(requests)) as turn:
            replies: list[Any] = []
            limit = ReplyLimit(self._processes)
            size, paused = SLICE, time.monotonic()
            while len(replies) < len(requests):
                if limit.reached:
                    return replies + limit.rejected(path, requests[len(replies) :])
                began = time.monotonic()
                part = self._answer(path, requests[len(replies) : len(replies) + size])
                limit.add(part)
                replies += part
                now = time.monotonic()
                if now - began > PAUSE_AFTER_S:
                    size = max(1, size // 2)
                if now - paused > PAUSE_AFTER_S:
                    for _ in range(_ITERATIONS):
                        await asyncio.sleep(0)
                    await turn.give_way(len(requests) - len(replies))
                    paused = time.monotonic()
            return replies


class ReplyLimit:
    """Counts the text of a batch's replies; `processes` answer parts of it."""

    def __init__(self, processes: int) -> None:
        self._left = MAX_REPLY_CHARS // processes

    @property
    def reached(self) -> bool:
        """Whether further items are rejected."""
        return self._left <= 0

    def add(self, replies: Sequence[Any]) -> None:
        """Count replies."""
        for reply in replies:
            self._left -= len(getattr(reply, "observation", None) or "")
            self._left -= sum(map(len, getattr(reply, "actions", None) or ()))

    def rejected(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to items that are not carried out."""
        text = f"the call's other replies have {MAX_REPLY_CHARS} characters; send smaller batches"
        return failed_replies(path, requests, "too_large", text)


def failed_reply(path: str, request: Any, error: WireError) -> Any:
    """The reply to a request that could not be answered."""
    kind = _GIVES[path].__args__[0]
    if kind is CreateReply:
        return CreateReply(error=error)
    if kind is CloseReply:
        return CloseReply(request.session)
    if kind is StepReply:
        return StepReply(request.session, request.turn, error=error)
    return kind(session=request.session, error=error)


def failed_replies(path: str, requests: Sequence[Any], code: str, text: str) -> list[Any]:
    """Replies to requests that could not be answered, for the same reason."""
    return [
        failed_reply(path, r, WireError(code, text, getattr(r, "session", None))) for r in requests
    ]
