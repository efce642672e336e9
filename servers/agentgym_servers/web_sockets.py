"""Carries a neighbour's talk over WebSockets, one session a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

from agentgym_adapters.served import Said, Talk
from agentgym_servers.app import App, Receive, Send, headers_of
from agentgym_servers.desk import Desk
from agentgym_servers.metrics import count
from agentgym_servers.request_guard import RequestGuard

_REFUSED = {"type": "websocket.close", "code": 1008}
"""Sent before a connection is accepted, it is an answer of status 403."""


def web_socket_app(
    desk: Desk,
    open_talk: Callable[[str], Talk | None],
    idle_s: float,
    guard: RequestGuard,
) -> App:
    """Serves the WebSockets of a protocol; one that is silent for `idle_s` seconds ends."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await receive()  # that somebody wants to connect
        headers = headers_of(scope)
        error = guard.check_headers(headers) or desk.unauthorized(
            scope["path"], headers.get(b"authorization", "")
        )
        talk = open_talk(scope["path"])
        known = scope["path"] if talk is not None else "unknown"
        count(desk.figures.requests, known)
        if error is not None or talk is None:
            if error is not None:
                count(desk.figures.errors, error.code)
            await send(_REFUSED)
            return
        await send({"type": "websocket.accept"})
        try:
            await _converse(talk, idle_s, receive, send)
        finally:
            await talk.close()

    return app


async def _converse(talk: Talk, idle_s: float, receive: Receive, send: Send) -> None:
    said = await talk.open()
    while await _say(said, send):
        try:
            async with asyncio.timeout(None if idle_s == float("inf") else idle_s):
                message = await receive()
        except TimeoutError:
            said = await talk.idle()
            continue
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        said = await talk.hear(_as_text(message["bytes"]) if text is None else text)


async def _say(said: Said, send: Send) -> bool:
    """Send what is to be said; whether the talk goes on."""
    if said.text is not None:
        await send({"type": "websocket.send", "text": said.text})
    if said.ends:
        await send({"type": "websocket.close", "code": 1000})
    return not said.ends


def _as_text(content: bytes) -> str:
    # A binary frame is read as text is; what is no UTF-8 is no JSON either.
    return content.decode("utf-8", "replace")
