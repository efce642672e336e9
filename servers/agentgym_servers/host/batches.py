"""Large batches: answered a few items at a time, so that no client waits for another's batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
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


class Slices:
    """Answers batches in the event loop; between two slices of a large one, others are answered.

    Large batches wait for one another. An item that was rejected because of the size of the other
    replies was not carried out, and can be sent again.
    """

    def __init__(
        self, answer: Callable[[str, Sequence[Any]], list[Any]], processes: int = 1
    ) -> None:
        """`processes` answer parts of each batch."""
        self._answer = answer
        self._processes = processes
        self._large = asyncio.Lock()

    async def answer(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch of the route at `path`, in order."""
        if len(requests) <= SLICE:
            return self._answer(path, requests)
        async with self._large:
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
