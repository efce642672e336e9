"""Reads the bodies of HTTP requests, which may be long, slow or endless; knows no framework.

Shared by the servers of environments and by the trainer's gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from agentgym_env.wire import WireError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""The next part of a body, as ASGI has it: `http.request` with `body` and `more_body`, or
`http.disconnect`."""


class BodyReader:
    """Reads the bodies of requests, which may arrive slowly, or never end.

    A body has to arrive within 30 seconds, and one more for each 64 KiB. Bodies above 64 KiB wait
    for their turn if others, unfinished or not yet answered, already hold 64 MiB; smaller ones
    never wait. 16 of them are answered at a time, since what is decoded from them, and their
    replies, are several times as long.
    """

    FREE_BYTES: Final = 65_536
    HELD_BYTES: Final = 64 * 2**20
    SECONDS: Final = 30.0
    ANSWERED: Final = 16

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = max(self.HELD_BYTES, limit)
        self._returned = asyncio.Condition()
        self._answered = asyncio.Semaphore(self.ANSWERED)

    async def read(
        self, receive: Receive, declared: int = 0
    ) -> tuple[bytes | WireError | None, int]:
        """The body, read up to just over the limit, or why it is not read; and the bytes held.

        The bytes are to be given back when the request is answered. None if the client has
        disconnected. `declared` is the Content-Length, or 0.
        """
        message = await receive()  # the caller limits the wait for its first byte
        if message["type"] == "http.disconnect":
            return None, 0
        begin: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        if not more and len(begin) <= self.FREE_BYTES:
            return begin, 0
        return await self._read_rest(begin, more, receive, declared)

    async def _read_rest(
        self, begin: bytes, more: bool, receive: Receive, declared: int
    ) -> tuple[bytes | WireError | None, int]:
        now = asyncio.get_running_loop().time
        chunks, size, held = [begin], len(begin), 0
        body: bytes | WireError | None = None
        try:
            async with asyncio.timeout(self.SECONDS) as deadline:
                ends = now() + self.SECONDS
                while size <= self.limit:
                    if not held and max(size, declared) > self.FREE_BYTES:
                        deadline.reschedule(None)
                        began = now()
                        # Without a length, it may become as long as is allowed.
                        whole = declared or (self.limit if more else size)
                        held = await self._hold(min(whole, self.limit))
                        ends += now() - began
                    if not more:
                        break
                    deadline.reschedule(ends + size / self.FREE_BYTES)
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None, 0
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    more = message.get("more_body", False)
                if held:
                    deadline.reschedule(None)
                    await self._answered.acquire()
            body = b"".join(chunks)
        except TimeoutError:
            body = WireError("bad_request", "the body did not arrive in time")
        finally:
            if held and not isinstance(body, bytes):
                await self._return(held)
                held = 0
        return body, held

    async def give_back(self, size: int) -> None:
        """The request that held so many bytes is answered."""
        self._answered.release()
        await self._return(size)

    async def _return(self, size: int) -> None:
        self._left += size
        async with self._returned:
            self._returned.notify_all()

    async def _hold(self, size: int) -> int:
        async with self._returned:
            await self._returned.wait_for(lambda: self._left >= size)
            self._left -= size
        return size
