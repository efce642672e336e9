"""Limits WebSockets whose messages are not finished or not read; knows nothing of protocols."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from agentgym_env.connections import MAX_HEAD_BYTES
from agentgym_servers.host.request_guard import CONNECTION, READ_S, LimitedProtocol

UNFINISHED_BYTES: Final = 32 * 2**20
"""What the unfinished messages of all sockets may hold together."""
MAX_FRAGMENTS: Final = 1024
"""Most fragments of a message."""
SLICE: Final = 2048
LONG_SLICE: Final = 16_384
"""Bytes that are parsed at once, while others wait; more where the last ones were few frames."""
_FEW: Final = 16
MESSAGE_S: Final = 30.0
"""Seconds from the first byte of a message to its last, and one more for each 64 KiB that the
longest may have."""
_FRAGMENT_BYTES: Final = 128
"""What a fragment holds beside its content."""


class LimitedSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, of which neither a message nor an answer stays unfinished for ever.

    uvicorn limits the length of a message alone.
    """

    _unfinished: ClassVar[dict[LimitedSocket, int]] = {}
    """What sockets with an unfinished message hold, the longest unfinished first."""
    _fragments = 0
    """What the fragments of an unfinished message hold."""
    _message_ends: asyncio.TimerHandle | None = None
    _read_ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with nothing."""
        super().connection_made(transport)
        self._unparsed = bytearray()
        """What is not parsed yet."""
        self._frames = _FEW + 1
        """Those of the last slice."""

    def handle_connect(self, event: Any) -> None:
        """Let the application know the connection."""
        super().handle_connect(event)
        cast(dict[str, Any], self.scope)[CONNECTION] = self

    def admitted(self) -> None:
        """The application accepts the socket."""
        LimitedProtocol.connections_here.admitted(self.transport)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, a slice in each turn of the event loop."""
        if self._unparsed:
            self._unparsed += data
            return
        self._unparsed += data
        self._take_slice()

    async def receive(self) -> Any:
        """The next message; as long as one waits, no more are parsed."""
        message = await super().receive()
        if self._unparsed and not self.transport.is_closing():
            self.transport.pause_reading()
            if self.queue.empty():
                self.loop.call_soon(self._take_slice)
        return message

    async def send(self, message: Any) -> None:
        """Send a message; after the last one, what still arrives is parsed and dropped."""
        await super().send(message)
        if self.close_sent and self._unparsed:
            self.transport.pause_reading()
            self.loop.call_soon(self._take_slice)

    def _take_slice(self) -> None:
        if self.transport.is_closing() or not self._unparsed:
            return
        if not self.queue.empty() and not self.close_sent:
            return
        size = SLICE if self._frames > _FEW else LONG_SLICE
        part = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        self._frames = 0
        self._parse(part)
        if self.transport.is_closing():
            return
        if self._unparsed:
            self.transport.pause_reading()
            self.loop.call_soon(self._take_slice)
        elif not self.read_paused:
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        """Parse a slice; hang up where too much is unfinished."""
        super().data_received(data)
        if len(self.frames) > MAX_FRAGMENTS:
            self._hang_up()
        elif self.handshake_complete:
            # What is not parsed yet is a part of a frame.
            self._holds(len(self._unparsed) + len(self.conn.reader.buffer) + self._fragments)

    def handle_text(self, event: Any) -> None:
        """Begin a message."""
        super().handle_text(event)
        self._count(event)

    def handle_bytes(self, event: Any) -> None:
        """Begin a message."""
        super().handle_bytes(event)
        self._count(event)

    def handle_cont(self, event: Any) -> None:
        """Continue a message."""
        super().handle_cont(event)
        self._count(event)

    def handle_ping(self) -> None:
        """Answer, unless the client does not read."""
        self._frames += 1
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def pause_writing(self) -> None:
        """Wait for the client to read, for a while."""
        super().pause_writing()
        seconds = READ_S + self.transport.get_write_buffer_size() / MAX_HEAD_BYTES
        self._read_ends = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._stop(self._read_ends)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._let_go()
        self._stop(self._read_ends)
        LimitedProtocol.connections_here.closed(self.transport)
        super().connection_lost(exc)

    def _count(self, event: Any) -> None:
        self._frames += 1
        size = len(event.data) + _FRAGMENT_BYTES
        self._fragments = self._fragments + size if self.frames else 0
        # The parser keeps its last frame until the next one comes.
        event.data = b""

    def _holds(self, size: int) -> None:
        """An unfinished message holds that much; 0 if there is none."""
        if not size:
            if self._unfinished.pop(self, 0):
                self._stop(self._message_ends)
            return
        if self not in self._unfinished:
            self._await_end()
        self._unfinished[self] = size
        while sum(self._unfinished.values()) > UNFINISHED_BYTES:
            next(iter(self._unfinished))._hang_up()

    def _await_end(self) -> None:
        seconds = MESSAGE_S + self.config.ws_max_size / MAX_HEAD_BYTES
        self._message_ends = self.loop.call_later(seconds, self._end_message)

    def _end_message(self) -> None:
        """Hang up, or wait longer: while an answer is computed, nothing is read."""
        if self.read_paused:
            self._await_end()
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        self._let_go()
        self.transport.abort()

    def _let_go(self) -> None:
        """Free the unfinished message now, and not when the collector comes upon it."""
        self._holds(0)
        self.frames = []
        self._unparsed.clear()
        self.conn.reader.buffer.clear()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
