"""Large batches: answered a few items at a time, so that no client waits for another's batch."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from agentgym_env.wire import CloseReply, CreateReply, RenewReply, StepReply, WireError
from agentgym_servers.host import routes

_OBSERVED: Final = frozenset({routes.RESET.path, routes.STEP.path})
_GIVES: Final = {route.path: route.gives for route in routes.ROUTES if route.takes is not None}

SLICE: Final = 8
"""Items that the first slice of a batch has; the next ones have more or fewer, by what it cost."""
_LONGEST_SLICE: Final = 64
_SLICE_CHARS: Final = 2**20
"""Characters of text above which slices become shorter."""
PAUSE_AFTER_S: Final = 0.005
"""Others are answered after so many seconds; slices that take longer become shorter."""
_GROWTH: Final = 4
"""How many times as long the next slice may be, if it then costs no more than that."""
_ITERATIONS: Final = 16
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

    def turn(self, left: int) -> BatchTurn:
        """A context in which a batch with so many items may run."""
        return BatchTurn(self, left)

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


class BatchTurn:
    """The place of one batch."""

    def __init__(self, places: ShortestFirst, left: int) -> None:
        self._places = places
        self._left = left
        self._held = False

    async def __aenter__(self) -> BatchTurn:
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
        self._sizes: dict[str, int] = {}
        """Items of the next slice, by route."""

    async def answer(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch of the route at `path`, in order."""
        if len(requests) <= self._sizes.get(path, SLICE):
            return self._part(path, requests, ReplyLimit(self._processes))
        async with self._large.turn(len(requests)) as turn:
            replies: list[Any] = []
            limit = ReplyLimit(self._processes)
            paused = time.monotonic()
            while len(replies) < len(requests):
                if limit.reached:
                    return replies + limit.rejected(path, requests[len(replies) :])
                size = self._sizes.get(path, SLICE)
                replies += self._part(path, requests[len(replies) : len(replies) + size], limit)
                if time.monotonic() - paused > PAUSE_AFTER_S:
                    for _ in range(_ITERATIONS):
                        await asyncio.sleep(0)
                    await turn.give_way(len(requests) - len(replies))
                    paused = time.monotonic()
            return replies

    def _part(self, path: str, requests: Sequence[Any], limit: ReplyLimit) -> list[Any]:
        """The replies to a slice, whose cost decides how long the next one is."""
        began = time.monotonic()
        replies = self._answer(path, requests)
        cost = max(
            (time.monotonic() - began) / PAUSE_AFTER_S, limit.add(path, replies) / _SLICE_CHARS
        )
        size = self._sizes.get(path, SLICE)
        if cost > 1:
            self._sizes[path] = max(1, len(requests) // 2)
        elif len(requests) == size and cost * _GROWTH < 1:
            self._sizes[path] = min(size * _GROWTH, _LONGEST_SLICE)
        return replies


class ReplyLimit:
    """Counts the text of a batch's replies; `processes` answer parts of it."""

    def __init__(self, processes: int) -> None:
        self._left = MAX_REPLY_CHARS // processes

    @property
    def reached(self) -> bool:
        """Whether further items are rejected."""
        return self._left <= 0

    def add(self, path: str, replies: Sequence[Any]) -> int:
        """Count replies of the route at `path`; their characters."""
        characters = 0
        if path in _OBSERVED:
            characters = sum([len(reply.observation) for reply in replies])
        elif path == routes.ACTIONS.path:
            characters = sum(sum(map(len, reply.actions or ())) for reply in replies)
        self._left -= characters
        return characters

    def rejected(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to items that are not carried out."""
        text = f"the call's other replies have {MAX_REPLY_CHARS} characters; send smaller batches"
        return failed_replies(path, requests, "too_large", text)


def failed_reply(path: str, request: Any, error: WireError) -> Any:
    """The reply to a request that could not be answered."""
    kind = _GIVES[path].__args__[0]
    if kind is CreateReply:
        return CreateReply(error=error)
    if kind in (CloseReply, RenewReply):
        return kind(request.session)
    if kind is StepReply:
        return StepReply(request.session, request.turn, error=error)
    return kind(session=request.session, error=error)


def failed_replies(path: str, requests: Sequence[Any], code: str, text: str) -> list[Any]:
    """Replies to requests that could not be answered, for the same reason."""
    return [
        failed_reply(path, r, WireError(code, text, getattr(r, "session", None))) for r in requests
    ]
