"""Messages between processes of one server: numbered frames over a socket.

JSON inside, although MessagePack would be smaller: what comes back through another process is
then to the byte what an inline world's reply would have been.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any, Final

import msgspec
from msgspec import Struct

from agentgym_env.wire import (
    JSON,
    EnvCard,
    TaskList,
    decode,
    encode,
)
from agentgym_servers.host import routes
from agentgym_servers.host.codec import encode_replies
from agentgym_servers.host.metrics import Figures
from agentgym_servers.host.sessions import SessionTable

logger = logging.getLogger(__name__)

DESCRIBE: Final = "describe"
FIGURES: Final = "figures"
_POSTS = {route.path: route for route in routes.ROUTES if route.takes is not None}
_HEADER = 4
_MAX_ANSWER: Final = 128 * 2**20
"""Bytes of the longest answer that is read; each reply in it has at most 32 MiB."""


class Description(Struct, frozen=True):
    """What a process serves: its card and the tasks of every split."""

    card: EnvCard
    tasks: list[TaskList]


class Ask(Struct, array_like=True, frozen=True):
    """One question to another process."""

    number: int
    path: str
    body: bytes


class Answer(Struct, array_like=True, frozen=True):
    """Its answer."""

    number: int
    body: bytes


class Channel:
    """The asking end, for coroutines; answers may come in any order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._number = 0
        self._listening = asyncio.create_task(self._listen())

    @property
    def has_ended(self) -> bool:
        """Whether the peer has closed the connection."""
        return self._listening.done()

    async def ask(self, path: str, body: bytes) -> bytes:
        """The answer's body; raises `ConnectionError` if the peer has closed the connection."""
        if self.has_ended:
            raise ConnectionResetError("the other process has ended")
        self._number = number = self._number + 1
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(pack_frame(Ask(number, path, body)))
            await self._writer.drain()
            answered: bytes = await future
            return answered
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening

    async def _listen(self) -> None:
        try:
            while True:
                received = msgspec.msgpack.decode(
                    await read_frame(self._reader, _MAX_ANSWER), type=Answer
                )
                future = self._waiting.get(received.number)
                if future is not None and not future.done():
                    future.set_result(received.body)
        except (asyncio.IncompleteReadError, ConnectionError):
            logger.debug("the other process hung up")
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            # A world's own code shares its process with the other end.
            logger.error("the other process sent what is no answer: %s", error)
            self._writer.close()
        finally:
            # However it ended, no answer comes any more: whoever still waits must not wait on.
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionResetError("the other process has ended"))


def answer(table: SessionTable, figures: Figures, ask: Ask) -> bytes:
    """The frame that answers a question about `table`."""
    if ask.path == DESCRIBE:
        card = table.card()
        names = (*card.splits, *card.selections)
        body = encode(Description(card, [table.task_list(name) for name in names]))
    elif ask.path == FIGURES:
        body = encode(table.figures() + figures)
    else:
        return answer_with(table, ask, table.answer(ask.path, read_requests(ask)))
    return pack_frame(Answer(ask.number, body))


def read_requests(ask: Ask) -> list[Any]:
    """The requests in a question."""
    requests: list[Any] = decode(ask.body, _POSTS[ask.path].takes)
    return requests


def answer_with(table: SessionTable, ask: Ask, replies: list[Any]) -> bytes:
    """The frame that answers a question with these replies."""
    return pack_frame(Answer(ask.number, encode_replies(replies, JSON, table)[1]))


def read_replies(path: str, body: bytes) -> list[Any]:
    """The replies in an answer's body."""
    replies: list[Any] = decode(body, _POSTS[path].gives)
    return replies


def pack_frame(message: Ask | Answer) -> bytes:
    """A message as a frame."""
    content = msgspec.msgpack.encode(message)
    return len(content).to_bytes(_HEADER, "big") + content


async def read_frame(reader: asyncio.StreamReader, limit: int | None = None) -> bytes:
    """The next frame's content; raises `IncompleteReadError` at the end.

    A frame of more than `limit` bytes raises `ConnectionError`.
    """
    size = int.from_bytes(await reader.readexactly(_HEADER), "big")
    if limit is not None and size > limit:
        raise ConnectionError(f"a frame has {size} bytes; the limit is {limit}")
    return await reader.readexactly(size)


def read_frame_from(line: socket.socket) -> bytes | None:
    """The next frame's content, for a process that waits; None at the end."""
    header = _receive_exactly(line, _HEADER)
    return None if header is None else _receive_exactly(line, int.from_bytes(header, "big"))


def _receive_exactly(line: socket.socket, size: int) -> bytes | None:
    chunks: list[bytes] = []
    while size:
        chunk = line.recv(min(size, 2**20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
