"""Listens for the gateway, and closes connections on which no request with a key comes in time.

Whoever reaches the port can connect; whoever has a key is an agent of the run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from agentgym_env.connections import BACKLOG, Connections, HeadLimit, accepted_at_once
from agentgym_env.errors import BadRequest
from agentgym_env.request_bodies import BodyReader

logger = logging.getLogger(__name__)

_END_OF_HEAD: Final = b"\r\n\r\n"


class Listener:
    """The listening sockets of an application."""

    def __init__(self, app: web.Application, most: int | None = None) -> None:
        """`most` connections can be open; default: half of the files that the process may open."""
        app.middlewares.append(_answered)
        # aiohttp writes a traceback for each malformed request, and anybody can send those.
        logger.addFilter(_is_of_ours)
        self._runner = web.AppRunner(app, access_log=None, logger=logger, shutdown_timeout=0.5)
        self._connections = Connections(most)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port. Raises `OSError`."""
        await self._runner.setup()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._protocol, host, port, backlog=accepted_at_once()
            )
            # More may wait than asyncio accepts at once; its sockets do not tell the kernel so.
            for listening in self._server.sockets:
                with socket.socket(fileno=os.dup(listening.fileno())) as same:
                    same.listen(BACKLOG)
        except OSError:
            await self._runner.cleanup()
            raise
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            await self._accept_no_more(self._server)
            self._server.close()
        await self._runner.cleanup()

    async def _accept_no_more(self, server: asyncio.Server) -> None:
        """Asyncio loses a connection that it has accepted and whose transport comes after `close`.

        It makes the transport in the next turn of the loop, and tells us of it in the turn after.
        """
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # Windows
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
        for _ in range(2):
            await asyncio.sleep(0)

    def _protocol(self) -> GuardedProtocol:
        assert self._runner.server is not None
        return GuardedProtocol(self._runner.server(), self._connections)


class GuardedProtocol(asyncio.Protocol):
    """Passes on what a socket tells aiohttp's protocol, within the limits of strangers."""

    def __init__(self, inner: web.RequestHandler, connections: Connections) -> None:
        self._inner, self._connections = inner, connections
        self._transport: asyncio.Transport
        self._head: HeadLimit
        self._has_head = self._is_known = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give it a while for a request with a key."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._head = HeadLimit(asyncio.get_running_loop(), self._reject, lambda: False)
        self._head.wait("No request with an API key came")
        self._inner.connection_made(transport)
        self._connections.opened(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on a part of a request, unless a stranger's head is too long."""
        if not self._has_head:
            self._has_head = _END_OF_HEAD in self._tail + data
            self._tail = data[-3:]
            self._head.received(len(data))
            self._connections.holds(self._transport, 0 if self._has_head else self._head.bytes)
            if not self._has_head:
                self._head.check()
        if not self._transport.is_closing():
            self._inner.data_received(data)

    def admitted(self) -> None:
        """A request on it has a key."""
        self._has_head = self._is_known = True
        self._head.over()
        self._connections.admitted(self._transport)

    def answered(self) -> bool:
        """A request on it is answered; whether one had a key so far."""
        self._connections.answered(self._transport)
        return self._is_known

    def eof_received(self) -> None:
        """Pass it on."""
        self._inner.eof_received()

    def pause_writing(self) -> None:
        """Pass it on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._head.over()
        self._connections.closed(self._transport)
        self._inner.connection_lost(exc)

    def _reject(self, message: str) -> None:
        if self._has_head or self._transport.is_closing():
            # It has its answer already.
            self._transport.abort()
            return
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        head = f"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: {len(body)}"
        self._transport.write(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        self._transport.close()


def _is_of_ours(record: logging.LogRecord) -> bool:
    """Whether an error is the gateway's, and not that of a request."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


def admit(request: web.Request) -> None:
    """The request has a key."""
    if (connection := _connection_of(request)) is not None:
        connection.admitted()


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Note the end of a request; a stranger has one only."""
    response = await handler(request)
    connection = _connection_of(request)
    if connection is not None and not connection.answered():
        response.force_close()
    return response


def _connection_of(request: web.Request) -> GuardedProtocol | None:
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, GuardedProtocol) else None


async def read_body(request: web.Request, bodies: BodyReader) -> bytes:
    """The body of a request; raises `BadRequest` if it is late, and aiohttp's error if too long."""

    async def receive() -> MutableMapping[str, Any]:
        async with asyncio.timeout(BodyReader.SECONDS):
            chunk = await request.content.readany()
        more = not request.content.at_eof()
        return {"type": "http.request", "body": chunk, "more_body": more}

    declared = request.content_length or 0
    if declared > bodies.limit:
        raise web.HTTPRequestEntityTooLarge(bodies.limit, declared)
    try:
        body, held = await bodies.read(receive, declared)
    except TimeoutError:
        body, held = None, 0
    if held:
        await bodies.give_back(held)
    if not isinstance(body, bytes):
        raise BadRequest("the body did not arrive in time")
    if len(body) > bodies.limit:
        raise web.HTTPRequestEntityTooLarge(bodies.limit, len(body))
    return body
