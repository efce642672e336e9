"""A door: a listening port with a gate behind it, and the connections that came in."""

from __future__ import annotations

import asyncio
import logging
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable

from agentgym_servers.web.front.connection import Connection
from agentgym_servers.web.front.gate import Gate
from agentgym_servers.web.front.limits import Limits
from agentgym_servers.web.har import Exchange

logger = logging.getLogger(__name__)


class Door:
    """What one session's browser talks to. Made by `Front.open_door`."""

    def __init__(
        self,
        gate: Gate,
        listener: socket.socket,
        limits: Limits,
        close: Callable[[Door], None],
    ) -> None:
        """`close` runs `shut` in the front's thread, and waits for it."""
        self._gate = gate
        self._listener = listener
        self._limits = limits
        self._close = close
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()
        host, port = listener.getsockname()[:2]
        self.address: str = f"http://{host}:{port}"
        """Such as `http://127.0.0.1:41237`: a browser's proxy, or a site's own address."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What was asked and answered so far, if the gate records it."""
        return tuple(self._gate.exchanges)

    def close(self) -> None:
        """End all connections and free the port; once more does nothing."""
        self._close(self)

    async def listen(self) -> None:
        """Begin to take connections; runs in the front's thread."""
        self._server = await asyncio.start_server(
            self._receive, sock=self._listener, limit=self._limits.head_bytes
        )

    async def shut(self) -> None:
        """Do what `close` says; runs in the front's thread."""
        if self._server is None:
            return
        # A connection that was just taken in finds no server any more, and ends at once.
        server, self._server = self._server, None
        server.close()
        for task in self._visits:
            task.cancel()
        if self._visits:
            await asyncio.wait(self._visits)
        await server.wait_closed()

    def _receive(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._server is None or len(self._visits) >= self._limits.connections:
            writer.transport.abort()
            return
        visit = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._visits.add(visit)

        def leave(visit: asyncio.Task[None]) -> None:
            writer.transport.abort()
            self._visits.discard(visit)

        visit.add_done_callback(leave)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        await Connection(reader, writer, self._gate, self._limits).serve()
        writer.close()
        try:
            async with asyncio.timeout(self._limits.write_s):
                await writer.wait_closed()
        except OSError as error:
            logger.debug("a client did not take its last bytes: %s", error)
