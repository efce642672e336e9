"""The HTTP front: one thread that serves any number of ports, one per session."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_servers.web.evaluation.verified import Exchange
from agentgym_servers.web.front.message import (
    HttpReply,
    HttpRequest,
    Refused,
    read_body,
    read_request_head,
    refusal,
    reply_bytes,
)
from agentgym_servers.web.front.tunnel import Limits, tunnel


class Gate(Protocol):
    """Decides where a request goes, and brings the answer. Everything not allowed is `Refused`."""

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """The requests and answers so far; empty where nothing is recorded."""
        ...

    async def answer(self, request: HttpRequest) -> HttpReply:
        """Answer any request but CONNECT; called in the front's thread, which must not wait."""
        ...

    def tunnel_to(self, target: str) -> tuple[str, int]:
        """The host and port that CONNECT to a target leads to."""
        ...


class LocalSite(Protocol):
    """A site that answers at once, within this process."""

    def answer(self, request: HttpRequest) -> HttpReply:
        """Answer a request whose target is of this host, such as `/p/4?x=1`."""
        ...


logger = logging.getLogger(__name__)


class Connection:
    """A client of a listener."""

    def __init__(
        self, reader: StreamReader, writer: StreamWriter, gate: Gate, limits: Limits
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._gate = gate
        self._limits = limits

    async def serve(self) -> None:
        """Answer until the client has no more to ask, asks badly or is idle for too long."""
        try:
            while await self._serve_one():
                # Requests that already lie in the buffer are read without waiting; let others in.
                await asyncio.sleep(0)
        except (OSError, IncompleteReadError) as error:
            logger.debug("a client is gone: %s", error)

    async def _serve_one(self) -> bool:
        """Answer one request; whether another may follow."""
        request: HttpRequest | None = None
        try:
            request = await self._read_head()
            if request is None:
                return False
            if request.method == "CONNECT":
                await tunnel(
                    self._reader, self._writer, self._gate.tunnel_to(request.target), self._limits
                )
                return False
            request = await self._read_body(request)
        except Refused as error:
            to_head = request is not None and request.method == "HEAD"
            reply = refusal(error.status, error.words)
            await self._write(reply_bytes(reply, to_head=to_head, keeps_alive=False))
            await self._linger()
            return False
        await self._write(await self._answer(request))
        return request.keeps_alive

    async def _read_head(self) -> HttpRequest | None:
        async with asyncio.timeout(self._limits.idle_s):
            # Empty lines before a request are skipped, as HTTP/1.1 has it.
            while (first := await self._reader.read(1)) in (b"\r", b"\n"):
                pass
        if not first:
            return None
        try:
            async with asyncio.timeout(self._limits.head_s):
                rest = await self._reader.readuntil(b"\r\n\r\n")
        except LimitOverrunError as error:
            most = self._limits.head_bytes
            raise Refused(431, f"The request's head is longer than {most} bytes.") from error
        except TimeoutError as error:
            raise Refused(408, f"The request's head took over {self._limits.head_s} s.") from error
        return read_request_head(first + rest)

    async def _read_body(self, request: HttpRequest) -> HttpRequest:
        if request.header("expect").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self._limits.body_s):
                body = await read_body(self._reader, request.headers, self._limits.body_bytes)
        except TimeoutError as error:
            raise Refused(408, f"The request's body took over {self._limits.body_s} s.") from error
        return msgspec.structs.replace(request, body=body) if body else request

    async def _answer(self, request: HttpRequest) -> bytes:
        to_head, keeps_alive = request.method == "HEAD", request.keeps_alive
        try:
            reply = await self._gate.answer(request)
            return reply_bytes(reply, to_head=to_head, keeps_alive=keeps_alive)
        except Refused as error:
            reply = refusal(error.status, error.words)
        except Exception:
            # A page that fails is reported to the client and logged; the listener stays open.
            logger.exception("no answer to %s %.200s", request.method, request.target)
            reply = refusal(500, "The site failed on this request; its log says why.")
        return reply_bytes(reply, to_head=to_head, keeps_alive=keeps_alive)

    async def _write(self, reply: bytes) -> None:
        self._writer.write(reply)
        async with asyncio.timeout(self._limits.write_s):
            await self._writer.drain()

    async def _linger(self) -> None:
        """Read on for a moment: closing over unread bytes would reset the reply away."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        async with asyncio.timeout(self._limits.linger_s):
            while await self._reader.read(65_536):
                pass


_OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """What one session's browser talks to. Made by `Front.open_listener`."""

    def __init__(
        self,
        gate: Gate,
        sock: socket.socket,
        limits: Limits,
        close: Callable[[Listener], None],
    ) -> None:
        """`close` runs `shut` in the front's thread, and waits for it."""
        self._gate = gate
        self._socket = sock
        self._limits = limits
        self._close = close
        self._visits: set[asyncio.Task[None]] = set()
        host, port = sock.getsockname()[:2]
        self.address: str = f"http://{host}:{port}"
        """Such as `http://127.0.0.1:41237`: a browser's proxy, or a site's own address."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The requests and answers so far, if the gate records it."""
        return tuple(self._gate.exchanges)

    def close(self) -> None:
        """End all connections and free the port; a second call does nothing."""
        self._close(self)

    async def listen(self) -> None:
        """Begin to take connections; runs in the front's thread."""
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._take_in)

    async def shut(self) -> None:
        """Do the work of `close`; runs in the front's thread."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for visit in self._visits:
            visit.cancel()
        if self._visits:
            await asyncio.wait(self._visits)
        # An aborted connection releases its socket in the loop's next turn.
        await asyncio.sleep(0)

    def _take_in(self) -> None:
        # asyncio.start_server is not used: it loses a client that comes while it is closed.
        try:
            client, _ = self._socket.accept()
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
        loop.remove_reader(self._socket)

        def go_on() -> None:
            if self._socket.fileno() >= 0:
                loop.add_reader(self._socket, self._take_in)

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


_BACKLOG = 64


class Front:
    """Opens listeners, and serves all of them in one thread, which ends when the front is closed.

    Sites answer in well under a millisecond, so they are called in that thread; what has to wait
    for another machine is awaited. A front is not carried over a fork.
    """

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._listeners: set[Listener] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="web-front")
        self._thread.daemon = True
        self._thread.start()

    def open_listener(
        self,
        gate: Gate,
        sock: socket.socket | None = None,
        limits: Limits | None = None,
    ) -> Listener:
        """Open a listener, on a free port of 127.0.0.1 unless a listening socket is given."""
        sock = sock or listen_at("127.0.0.1", 0)
        with self._lock:
            if self._closed:
                sock.close()
                raise BadRequest("This front is closed; make another with Front().")
            listener = Listener(gate, sock, limits or Limits(), self._close_listener)
            self._run(listener.listen())
            self._listeners.add(listener)
        return listener

    def close(self) -> None:
        """Close all listeners and end the thread; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _close_listener(self, listener: Listener) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
                self._run(listener.shut())

    async def _shut(self) -> None:
        for listener in self._listeners:
            await listener.shut()
        self._listeners.clear()
        # It looks up the names of real sites, if there are any.
        await self._loop.shutdown_default_executor()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


def listen_at(host: str, port: int) -> socket.socket:
    """A listening socket; a port of 0 is any that is free."""
    try:
        return socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise BadRequest(
            f"Nothing can listen at {host}:{port} ({error.strerror}). Take a free port, and an "
            "address that this machine has."
        ) from error
