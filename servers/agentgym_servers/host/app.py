"""The ASGI application: carries HTTP requests to the codec and back.

It is written on bare ASGI: a framework's request and response objects were a third of the cost
of a call (benchmarks/README.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Struct

from agentgym_adapters.served import Undo
from agentgym_env.request_bodies import BodyReader
from agentgym_env.wire import JSON, MSGPACK
from agentgym_servers.host.codec import Answer, CallBatch, Codec, Scrape
from agentgym_servers.host.metrics import Figures
from agentgym_servers.host.request_guard import (
    CONNECTION,
    LimitedProtocol,
    RequestGuard,
    check_content_type,
)
from agentgym_servers.host.routes import METHOD_OF

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

START_ERROR: Final = "agentgym_start_error"
"""What the state of the application's lifespan calls an exception at the start."""


class Service(Protocol):
    """A codec, and what answers the requests that it decodes."""

    codec: Codec

    async def ask(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch of the route at `path`, in order."""
        ...

    async def figures(self) -> Figures:
        """What the whole server counted."""
        ...

    async def start(self) -> None:
        """Get ready; called in the event loop that will serve."""
        ...

    async def stop(self) -> None:
        """End every session."""
        ...


class HttpCall(Struct, frozen=True):
    """One request that passed the checks of its headers."""

    method: str
    path: str
    query: str
    body: bytes
    content_type: str
    accept: str
    authorization: str
    headers: Mapping[bytes, str]
    """By lower-case name."""


@dataclass(frozen=True, slots=True)
class HeadedAnswer:
    """An answer with header fields of its own."""

    answer: Answer
    headers: Sequence[tuple[bytes, bytes]] = ()
    if_unread: Undo | None = None
    """Called when the client is gone before it has read the answer."""


Answerer = Callable[[HttpCall], Awaitable[Answer | HeadedAnswer]]
"""Speaks a protocol."""


def make_app(
    service: Service,
    answerer: Answerer | None = None,
    web_sockets: App | None = None,
    guard: RequestGuard | None = None,
) -> App:
    """The application that serves `service`, starts it and stops it.

    It speaks our own protocol unless an `answerer` speaks another; `web_sockets` serves those.
    Without a `guard`, only loopback hosts are accepted.
    """
    answer = answerer or partial(answer_call, service)
    guarded = guard or RequestGuard()
    accepted = (JSON, MSGPACK) if answerer is None else (JSON,)
    bodies = BodyReader(service.codec.max_body_bytes)

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _serve_call(
                service.codec, bodies, guarded, accepted, answer, scope, receive, send
            )
        elif scope["type"] == "lifespan":
            await _live(service, scope, receive, send)
        elif web_sockets is not None:
            await web_sockets(scope, receive, send)
        else:
            # A WebSocket: nothing is behind it.
            await send({"type": "websocket.close", "code": 1000})

    return app


async def answer_call(service: Service, call: HttpCall) -> Answer:
    """Answer a call of our own protocol."""
    codec = service.codec
    if len(call.body) <= BodyReader.FREE_BYTES:
        begun = _begin(codec, call)
    else:
        # One in each iteration of the event loop: others are answered in between.
        async with codec.decoding:
            begun = _begin(codec, call)
            await asyncio.sleep(0)
    if isinstance(begun, CallBatch):
        return codec.finish(begun, await service.ask(begun.route.path, begun.requests))
    if isinstance(begun, Scrape):
        return codec.show(begun, await service.figures())
    return begun


def _begin(codec: Codec, call: HttpCall) -> Answer | CallBatch | Scrape:
    return codec.begin(
        call.method,
        call.path,
        call.query,
        call.body,
        call.content_type,
        call.accept,
        call.authorization,
    )


async def _serve_call(
    codec: Codec,
    bodies: BodyReader,
    guard: RequestGuard,
    accepted: Sequence[str],
    answer: Answerer,
    scope: MutableMapping[str, Any],
    receive: Receive,
    send: Send,
) -> None:
    connection: LimitedProtocol | None = scope.get(CONNECTION)
    if connection is not None:
        if connection.flow.write_paused:
            # No other reply is computed for a client that has not read the earlier ones.
            await connection.flow.drain()
        if connection.transport.is_closing():
            return
    headers = headers_of(scope)
    declared = content_length(headers)
    error = (
        guard.check_headers(headers)
        or codec.unauthorized(scope["path"], headers.get(b"authorization", ""))
        or codec.too_large(declared)
    )
    body, held = (error, 0) if error else await bodies.read(receive, declared)
    if body is None:
        return
    if connection is not None and error is None:
        connection.admitted()
    try:
        if isinstance(body, bytes):
            content_type = headers.get(b"content-type", "")
            error = codec.too_large(len(body)) or check_content_type(
                scope["method"], body, content_type, accepted
            )
            body = error or body
        if isinstance(body, bytes):
            answered = await answer(_call_of(scope, headers, body, content_type))
        else:
            answered = codec.fail(body)
    finally:
        if held:
            await bodies.give_back(held)
    status, fields, content = _reply_of(answered, scope["path"])
    if connection is not None:
        connection.reply_bytes = len(content)
        if isinstance(answered, HeadedAnswer) and answered.if_unread is not None:
            connection.if_unread(answered.if_unread)
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": content})
    if connection is not None:
        connection.reply_bytes = 0
        connection.answered()


def _call_of(
    scope: MutableMapping[str, Any], headers: Mapping[bytes, str], body: bytes, content_type: str
) -> HttpCall:
    return HttpCall(
        scope["method"],
        scope["path"],
        scope["query_string"].decode("latin-1"),
        body,
        content_type,
        headers.get(b"accept", ""),
        headers.get(b"authorization", ""),
        headers,
    )


def _reply_of(
    answered: Answer | HeadedAnswer, path: str
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, header fields and content of the reply."""
    own_fields: Sequence[tuple[bytes, bytes]] = ()
    if isinstance(answered, HeadedAnswer):
        own_fields = answered.headers
        answered = answered.answer
    status, content_type, content = answered
    fields = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % len(content)),
        *own_fields,
    ]
    if status == 401:
        fields.append((b"www-authenticate", b"Bearer"))
    if status == 405 and path in METHOD_OF:
        fields.append((b"allow", METHOD_OF[path].encode()))
    return status, fields, content


def headers_of(scope: MutableMapping[str, Any]) -> dict[bytes, str]:
    """The header fields by lower-case name; repeated fields are joined, as HTTP defines it."""
    headers: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def content_length(headers: Mapping[bytes, str]) -> int:
    """The declared length of the body; 0 if there is none."""
    declared = headers.get(b"content-length", "")
    return (
        int(declared) if declared.isascii() and declared.isdecimal() and len(declared) < 19 else 0
    )


async def _live(
    service: Service, scope: MutableMapping[str, Any], receive: Receive, send: Send
) -> None:
    """Start with the server and stop with it; an error at the start is kept in its state."""
    await receive()
    try:
        await service.start()
    except Exception as error:
        scope.get("state", {})[START_ERROR] = error
        await send({"type": "lifespan.startup.failed", "message": ""})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await service.stop()
    await send({"type": "lifespan.shutdown.complete"})
