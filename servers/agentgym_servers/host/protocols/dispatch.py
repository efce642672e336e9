"""`--protocol`: the application that speaks the requested protocol.

What is said is the adapters' business. Here it is carried, past the same door and to the same
sessions as our own protocol.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final

from agentgym_adapters.openenv_server import OpenEnvServer
from agentgym_adapters.served import HttpProtocol, Question, Said, Served, Talk
from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_env.wire import JSON, encode
from agentgym_servers.host import routes
from agentgym_servers.host.app import (
    App,
    HeadedAnswer,
    HttpCall,
    Receive,
    Send,
    Service,
    answer_call,
    headers_of,
    make_app,
)
from agentgym_servers.host.codec import Answer, Codec
from agentgym_servers.host.metrics import count
from agentgym_servers.host.protocols.agentgym import original_protocol
from agentgym_servers.host.protocols.single_calls import SingleCalls
from agentgym_servers.host.request_guard import RequestGuard
from agentgym_servers.host.settings import OPENENV, OWN, ServeSettings

_HTTP_PROTOCOLS: Final[Mapping[str, str]] = {
    "mcp": "agentgym_adapters.mcp_server:McpServer",
    "nemo-gym": "agentgym_adapters.nemo_gym_server:NemoGymServer",
}
"""Protocol -> what speaks it; imported only when the protocol is requested."""

_REFUSED = {"type": "websocket.close", "code": 1008}

"""Sent before a connection is accepted, it is an answer of status 403."""


def web_socket_app(
    codec: Codec,
    open_talk: Callable[[str], Talk | None],
    idle_s: float,
    guard: RequestGuard,
) -> App:
    """Serves the WebSockets of a protocol; one that is silent for `idle_s` seconds ends."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await receive()  # that somebody wants to connect
        headers = headers_of(scope)
        error = guard.check_headers(headers) or codec.unauthorized(
            scope["path"], headers.get(b"authorization", "")
        )
        talk = open_talk(scope["path"])
        known = scope["path"] if talk is not None else "unknown"
        count(codec.figures.requests, known)
        if error is not None or talk is None:
            if error is not None:
                count(codec.figures.errors, error.code)
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


def app_of(service: Service, settings: ServeSettings) -> App:
    """The application that speaks the protocol of the settings."""
    guard = settings.guard()
    if settings.protocol == OWN:
        return make_app(service, guard=guard)
    if settings.protocol == "agentgym":
        return make_app(
            service,
            original_protocol(service, settings.env_id, settings.session_ttl_s),
            guard=guard,
        )
    served = SingleCalls(service)
    if settings.protocol == OPENENV:
        openenv = OpenEnvServer(served)
        sockets = web_socket_app(service.codec, openenv.talk, settings.session_ttl_s, guard)
        return make_app(service, partial(_answer, service, openenv), sockets, guard)
    make_protocol = _http_protocol(settings.protocol)
    protocol = make_protocol(served, settings.session_ttl_s, settings.max_sessions)
    return make_app(service, partial(_answer, service, protocol), guard=guard)


def check_protocol(settings: ServeSettings) -> None:
    """Raise where a server cannot be as it is asked to be, or needs what is not installed."""
    if settings.protocol == OPENENV and importlib.util.find_spec("websockets") is None:
        raise MissingExtra(
            "--protocol openenv needs websockets: pip install 'agentgym-sdk[serve,openenv]'"
        )
    if settings.protocol in _HTTP_PROTOCOLS:
        _http_protocol(settings.protocol)
    several = settings.workers > 1 and not settings.isolated
    if several and settings.protocol not in (OWN, OPENENV):
        raise BadRequest(
            f"--protocol {settings.protocol} keeps its sessions in one process; leave --workers"
        )


def _http_protocol(name: str) -> Callable[[Served, float, int], HttpProtocol]:
    """What speaks a protocol; raises `MissingExtra`."""
    module, _, attribute = _HTTP_PROTOCOLS[name].partition(":")
    found: Callable[[Served, float, int], HttpProtocol]
    found = getattr(importlib.import_module(module), attribute)
    return found


async def _answer(
    service: Service, protocol: HttpProtocol, call: HttpCall
) -> Answer | HeadedAnswer:
    """Answer a neighbour's call. The metrics are ours: none of them has any."""
    if call.path == routes.METRICS.path:
        return await answer_call(service, call)
    headers = {name.decode("latin-1"): value for name, value in call.headers.items()}
    reply = await protocol.answer(Question(call.method, call.path, call.body, headers))
    count(service.codec.figures.requests, protocol.route(call.path))
    body = b"" if reply.body is None else encode(reply.body)
    fields = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    return HeadedAnswer((reply.status, JSON, body), fields)
