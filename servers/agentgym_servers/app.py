"""The ASGI application: carries HTTP calls to the desk and back.

It is written on bare ASGI: a framework's request and response objects were a third of the cost
of a call (benchmarks/README.md).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from agentgym_servers.desk import Answer, Batch, Desk, Scrape
from agentgym_servers.metrics import Figures

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Service(Protocol):
    """A desk and, behind it, who answers."""

    desk: Desk

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


def make_app(service: Service) -> App:
    """The application that serves `service`, starts it and stops it."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _serve_call(service, scope, receive, send)
        elif scope["type"] == "lifespan":
            await _live(service, receive, send)
        else:
            # A WebSocket: nothing is behind it.
            await send({"type": "websocket.close", "code": 1000})

    return app


async def _serve_call(
    service: Service, scope: MutableMapping[str, Any], receive: Receive, send: Send
) -> None:
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    answer = await _answer(service, scope, headers, receive)
    if answer is None:
        return
    status, content_type, content = answer
    fields = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % len(content)),
    ]
    if status == 401:
        fields.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": content})


async def _answer(
    service: Service, scope: MutableMapping[str, Any], headers: dict[bytes, str], receive: Receive
) -> Answer | None:
    """The answer to a call; None if its client has gone."""
    desk, path = service.desk, scope["path"]
    authorization = headers.get(b"authorization", "")
    declared = headers.get(b"content-length", "")
    error = desk.unauthorized(path, authorization) or desk.too_large(
        int(declared) if declared.isdecimal() else 0
    )
    if error is not None:
        return desk.fail(error)
    body = await _read(receive, desk.max_body_bytes)
    if body is None:
        return None
    begun = desk.begin(
        scope["method"],
        path,
        scope["query_string"].decode("latin-1"),
        body,
        headers.get(b"content-type", ""),
        headers.get(b"accept", ""),
        authorization,
    )
    if isinstance(begun, Batch):
        return desk.finish(begun, await service.ask(begun.route.path, begun.requests))
    if isinstance(begun, Scrape):
        return desk.show(begun, await service.figures())
    return begun


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The body; of one longer than `limit`, no more than shows that it is. None: nobody waits."""
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    chunks, size = [body], len(body)
    while size <= limit and message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
    return b"".join(chunks)


async def _live(service: Service, receive: Receive, send: Send) -> None:
    """Start with the server and stop with it."""
    await receive()
    try:
        await service.start()
    except Exception as error:
        logger.error("the server cannot start: %s", error)
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await service.stop()
    await send({"type": "lifespan.shutdown.complete"})
