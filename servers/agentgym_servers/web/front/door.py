"""A door: a listening port with a gate behind it, and the connections that came in."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from agentgym_servers.web.front.connection import Connection
from agentgym_servers.web.front.gate import Gate
from agentgym_servers.web.front.limits import Limits
from agentgym_servers.web.har import Exchange

logger = logging.getLogger(__name__)

_OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._take_in)

    async def shut(self) -> None:
        """Do what `close` says; runs in the front's thread."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for visit in self._visits:
            visit.cancel()
        if self._visits:
            await asyncio.wait(self._visits)
        # What was aborted lets go of its socket in the loop's next turn.
        await asyncio.sleep(0)

    def _take_in(self) -> None:
        # asyncio.start_server is not used: it loses a client that comes while it is closed.
        try:
            client, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _OUT_OF_ROOM:
                self._rest()
            logger.debug("a client could not be taken in: %s", error)
            return
        if len(self._visits) >= self._limits.connections:
            client.close()
            return
        visit = asyncio.get_running_loop().create_task(self._serve(client))
        self._visits.add(visit)

        def leave(visit: asyncio.Task[None]) -> None:
            self._visits.discard(visit)
            client.close()

        visit.add_done_callback(leave)

    def _rest(self) -> None:
        """Leave clients waiting for a second, in which others may end."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)

        def go_on() -> None:
            if self._listener.fileno() >= 0:
                loop.add_reader(self._listener, self._take_in)

        loop.call_later(1.0, go_on)

    async def _serve(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(self._limits.head_bytes, loop)
        transport, protocol = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), client
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await Connection(reader, writer, self._gate, self._limits).serve()
            writer.close()
            async with asyncio.timeout(self._limits.write_s):
                await writer.wait_closed()
        except OSError as error:
            logger.debug("a client did not take its last bytes: %s", error)
        finally:
            transport.abort()
