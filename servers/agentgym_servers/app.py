"""The ASGI application: carries HTTP calls to the host and back, and reaps idle sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from agentgym_env.errors import MissingExtra
from agentgym_servers.host import Host

try:
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Mount
    from starlette.types import ASGIApp, Receive, Scope, Send
except ModuleNotFoundError as error:
    raise MissingExtra("serving needs starlette: pip install 'agentgym-sdk[serve]'") from error

_REAP_EVERY_S = (1.0, 30.0)


def make_app(host: Host) -> Starlette:
    """The application that serves `host` and ends its sessions at shutdown."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        reaping = asyncio.create_task(_reap(host))
        try:
            yield
        finally:
            reaping.cancel()
            with suppress(asyncio.CancelledError):
                await reaping
            host.table.shutdown()

    return Starlette(routes=[Mount("/", app=_endpoint(host))], lifespan=lifespan)


def _endpoint(host: Host) -> ASGIApp:
    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await _respond(host, request)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    return endpoint


async def _respond(host: Host, request: Request) -> Response:
    headers, path = request.headers, request.scope["path"]
    authorization = headers.get("authorization", "")
    declared = headers.get("content-length", "")
    error = host.unauthorized(path, authorization) or host.too_large(
        int(declared) if declared.isdecimal() else 0
    )
    body = b""
    if error is None:
        body = await _read(request, host.max_body_bytes)
        error = host.too_large(len(body))
    if error is not None:
        status, content_type, content = host.fail(error)
    else:
        status, content_type, content = host.handle(
            request.method,
            path,
            request.scope["query_string"].decode("latin-1"),
            body,
            headers.get("content-type", ""),
            headers.get("accept", ""),
            authorization,
        )
    challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return Response(content, status, challenge, media_type=content_type)


async def _read(request: Request, limit: int) -> bytes:
    """The body; of one longer than `limit`, no more than shows that it is."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    return b"".join(chunks)


async def _reap(host: Host) -> None:
    shortest, longest = _REAP_EVERY_S
    period = min(longest, max(shortest, host.table.ttl_s / 4))
    while True:
        await asyncio.sleep(period)
        host.table.reap()
