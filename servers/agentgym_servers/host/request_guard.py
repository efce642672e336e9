"""Rejects requests that a web page can make in a visitor's browser; knows nothing about protocols.

Any page can open WebSockets and send simple requests to any address, and a page whose own name
resolves to this machine can even read the answers (DNS rebinding). Every server of ours checks
each request with a `RequestGuard` before it does any work.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.flow_control import FlowControl

from agentgym_adapters.served import Undo
from agentgym_env.connections import MAX_HEAD_BYTES, Connections, HeadLimit
from agentgym_env.errors import BadRequest
from agentgym_env.wire import JSON, MSGPACK, WireError

ANY_HOST: Final = "*"
ALLOWED_HOST_HELP: Final = (
    "Accept requests to this host name too, besides the address to listen on and loopback names; "
    "repeatable. * accepts any."
)
"""The help of `--allowed-host`, of every command that serves."""
_REMEMBERED = 64
_MAX_SHOWN = 100
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?")
"""An address of IPv6 in brackets, or a name; and a port."""


class RequestGuard:
    """Decides which Host, Origin and Content-Type headers a server accepts.

    A server that listens on a loopback address answers to loopback names only. One that listens
    on another address answers to that address too, and one that listens on every address to any
    IP address and to this machine's name. `allowed_hosts` adds names; `*` admits every Host.
    An Origin must be the server itself, as the Host names it, or a page on a host in
    `allowed_hosts`. A request without an Origin does not come from a page of another site.
    """

    def __init__(self, listens_on: str = "127.0.0.1", allowed_hosts: Iterable[str] = ()) -> None:
        self._any_address = listens_on in ("", "0.0.0.0", "::")
        self._allowed = frozenset(map(checked_host, allowed_hosts))
        names = {listens_on.lower()} | self._allowed
        if self._any_address:
            names.add(socket.gethostname().lower())
        self._names = frozenset(names)
        self._accepted: set[str] = set()
        """Host headers accepted before, so that an ordinary request costs one lookup."""

    def check_headers(self, headers: Mapping[bytes, str]) -> WireError | None:
        """Why a request is rejected because of its Host or Origin, or None."""
        host = headers.get(b"host")
        if host is not None and host not in self._accepted:
            if not self._accepts_host(host):
                return WireError(
                    "unknown_host",
                    f"this server does not answer to the host {host[:_MAX_SHOWN]!r}; "
                    "allow it with --allowed-host NAME",
                )
            if len(self._accepted) < _REMEMBERED:
                self._accepted.add(host)
        origin = headers.get(b"origin")
        if origin is not None and not self._accepts_origin(origin, host or ""):
            return WireError(
                "foreign_origin",
                f"web pages of {origin[:_MAX_SHOWN]!r} may not use this server; "
                "allow their host with --allowed-host NAME",
            )
        return None

    def _accepts_host(self, header: str) -> bool:
        if ANY_HOST in self._allowed:
            return True
        name = _host_name(header)
        if name is None:
            return False
        return is_loopback(name) or name in self._names or (self._any_address and _is_ip(name))

    def _accepts_origin(self, origin: str, host: str) -> bool:
        try:
            page = urlsplit(origin)
            name = (page.hostname or "").lower()
        except ValueError:
            return False
        if page.scheme not in ("http", "https"):
            return False
        return name in self._allowed or (name != "" and page.netloc.lower() == host.lower())


MAX_FIELDS: Final = 100
"""Most header fields of a request, trailers included."""
MAX_PIPELINED: Final = 8
"""Most requests of a connection that wait for the reply to an earlier one."""
FRAMING: Final = 8
"""Bytes of framing for each byte of a chunked body, beyond `MAX_HEAD_BYTES`."""

UNCOUNTED_BYTES: Final = 4096
"""What a connection may hold of replies that its client has not read, without being counted."""
CONNECTION: Final = "agentgym.connection"
"""The key of a request's ASGI scope that has its `LimitedProtocol`."""

READ_S: Final = 30.0
"""Seconds that a client has to read a reply, and one more for each 64 KiB."""


class PipelineFlow(FlowControl):
    """Flow control that reads no further while a request waits for the reply to an earlier one.

    uvicorn's reads on when the earlier one asks for its body, and keeps all that comes.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Collection[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        # Called twice for each request, and there is next to never anything to do.
        if self.read_paused and not self._waiting:
            super().resume_reading()


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's protocol, with limits on a request's head and on a reply that is not read.

    The head is checked before anything is known of the request, so nothing else can check it.
    """

    connections_here: ClassVar[Connections] = Connections()
    """Those of this process."""
    _framing = 0
    """Bytes since the head ended that are not of the body, less those that the body allows."""
    _read_ends: asyncio.TimerHandle | None = None
    max_unread_bytes = 16 * 2**20
    """What the replies that clients have not read may hold together."""
    _undoing: ClassVar[set[asyncio.Task[None]]] = set()
    _unread: ClassVar[dict[LimitedProtocol, None]] = {}
    """The connections whose clients do not read, the longest waiting first."""
    reply_bytes = 0
    """The length of a reply of which only the head is written so far; the application sets it."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Count what the client has not read from a few kilobytes on."""
        super().connection_made(transport)
        self.connections_here.opened(transport)
        self._head = HeadLimit(self.loop, self._reject, lambda: bool(self.flow.read_paused))
        self._undos: deque[Undo] = deque(maxlen=MAX_PIPELINED + 1)
        transport.set_write_buffer_limits(UNCOUNTED_BYTES)
        # h11 has none: it takes one request at a time.
        self.flow = PipelineFlow(transport, getattr(self, "pipeline", ()))

    def pause_writing(self) -> None:
        """Wait for the client to read; hang up if it does not, or if too many do not."""
        super().pause_writing()
        seconds = READ_S + self.transport.get_write_buffer_size() / MAX_HEAD_BYTES
        self._read_ends = self.loop.call_later(seconds, self.transport.abort)
        self._unread[self] = None
        while len(self._unread) > 1 and self._unread_bytes() > self.max_unread_bytes:
            longest = next(iter(self._unread))
            longest._reply_is_read()
            longest.transport.abort()

    def if_unread(self, undo: Undo) -> None:
        """Call `undo` if the client is gone before it has read the reply that is sent next.

        Only the last few are remembered: what was asked at once can be unread together.
        """
        if self.transport.is_closing():
            self._take_back([undo])
        else:
            self._undos.append(undo)

    def eof_received(self) -> None:
        """The client has ended the connection; it may have done so before a reply was written."""
        # The kernel tells of it so: what is sent to a closed socket is answered by a reset.
        if self._undos and self.transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_ERROR
        ):
            self._take_back(self._undos)
        super().eof_received()

    def _take_back(self, undos: Collection[Undo]) -> None:
        for undo in undos:
            task = self.loop.create_task(undo())
            self._undoing.add(task)
            task.add_done_callback(self._undoing.discard)
        self._undos.clear()

    def resume_writing(self) -> None:
        """The client has read."""
        self._reply_is_read()
        super().resume_writing()

    def _unread_bytes(self) -> int:
        return sum(
            other.transport.get_write_buffer_size() + other.reply_bytes for other in self._unread
        )

    def _reply_is_read(self) -> None:
        self._unread.pop(self, None)
        if self._read_ends is not None:
            self._read_ends.cancel()
            self._read_ends = None

    # httptools calls these two; h11 has limits of its own and takes one request at a time.
    def on_message_begin(self) -> None:
        """Reject too many requests that came at once."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError(f"more than {MAX_PIPELINED} requests wait for their replies")
        super().on_message_begin()
        self.scope[CONNECTION] = self

    def on_header(self, name: bytes, value: bytes) -> None:
        """Reject a request with too many header fields."""
        if len(self.headers) >= MAX_FIELDS:
            raise ValueError(f"the request has more than {MAX_FIELDS} header fields")
        super().on_header(name, value)

    def on_message_complete(self) -> None:
        """Note the end of the body, which uvicorn does not once the reply is complete.

        What comes next is the head of another request then, and is limited as such.
        """
        super().on_message_complete()
        if self.cycle is not None:
            self.cycle.more_body = False

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; reject a request whose head or framing is too long."""
        before = self.cycle
        in_body = before is not None and before.more_body
        if in_body:
            known = len(before.body)
        else:
            self._head.received(len(data))
        super().data_received(data)
        cycle = self.cycle
        if cycle is not before:
            self._head_is_over()
            self._framing = 0
            if cycle.more_body and not cycle.body:
                self._head.wait("The request's body did not begin")
        elif in_body:
            self._check_body(len(data), len(cycle.body) - known)
        else:
            self.connections_here.holds(self.transport, self._head.bytes)
            self._head.check()

    def _check_body(self, received: int, body: int) -> None:
        """Judge bytes that came after a head, `body` of which are of the request's body."""
        if self.cycle.response_complete:
            # uvicorn drops the rest of the body; what is not counted may not go on for ever.
            self._head.wait("The rest of the request's body did not end")
            return
        if body or not self.cycle.more_body:
            self._head_is_over()
        self._framing += received - body - FRAMING * body
        if self._framing > MAX_HEAD_BYTES:
            self._reject(f"The request's body has more than {MAX_HEAD_BYTES} bytes of framing.")
        elif self._framing < 0:
            self._framing = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and take back what the client cannot know of."""
        # A socket that is closed with unread bytes in it resets the connection.
        if exc is not None or self.flow.write_paused:
            self._take_back(self._undos)
        self.connections_here.closed(self.transport)
        self._head_is_over()
        self._reply_is_read()
        super().connection_lost(exc)

    def _head_is_over(self) -> None:
        self._head.over()
        self.connections_here.holds(self.transport, 0)

    def admitted(self) -> None:
        """The request that is being answered may be made here."""
        self.connections_here.admitted(self.transport)

    def answered(self) -> None:
        """The reply is sent."""
        self.connections_here.answered(self.transport)

    def _reject(self, message: str) -> None:
        self._head_is_over()
        # A WebSocket has another protocol from then on.
        if self.transport.get_protocol() is self and not self.transport.is_closing():
            self.send_400_response(message)


def check_content_type(
    method: str, body: bytes, content_type: str, accepted: Sequence[str] = (JSON, MSGPACK)
) -> WireError | None:
    """Why a request with a body of this type is rejected, or None.

    A page can send a body to another site without asking first only if it is plain text, a form
    or of no type. A request without a body needs no type, and a GET has no body to read.
    """
    if content_type == JSON or method in ("GET", "HEAD") or not body:
        return None
    sent = media_type(content_type)
    if sent in accepted:
        return None
    return WireError(
        "unsupported_media_type",
        f"a body of type {sent[:_MAX_SHOWN]!r} is not accepted; send Content-Type: "
        f"{' or '.join(accepted)}",
    )


def media_type(content_type: str) -> str:
    """A Content-Type header without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a host."""
    if host in ("localhost", "::1"):
        return True
    return host.startswith("127.") and _is_ip(host)


def checked_host(name: str) -> str:
    """A name for `allowed_hosts`, in lower case; raises `BadRequest` for a URL or a port."""
    lowered = name.strip().lower()
    if lowered == ANY_HOST or _is_ip(lowered):
        return lowered
    if not lowered or not lowered.isascii() or any(c in lowered for c in "/:*@[] \t"):
        raise BadRequest(
            f"--allowed-host is a host name without scheme and port, or *, got {name!r}"
        )
    return lowered


def _host_name(header: str) -> str | None:
    """The name in a Host header in lower case; None if it is malformed."""
    found = _HOST.fullmatch(header.lower())
    return None if found is None else found[1] or found[2]


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
