"""`--protocol`: the application that speaks the requested protocol, which alone is imported.

The adapters define the messages. Here they are carried, past the same checks and to the same
sessions as those of our own protocol.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final

from agentgym_adapters.served import Connection, HttpProtocol, HttpRequest, Outgoing
from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_env.wire import JSON, WireError, encode
from agentgym_servers.host import routes
from agentgym_servers.host.app import (
    Answerer,
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
from agentgym_servers.host.codec import Answer, Codec, has_more_values
from agentgym_servers.host.metrics import count
from agentgym_servers.host.protocols.single_calls import SingleCalls
from agentgym_servers.host.request_guard import CONNECTION, RequestGuard
from agentgym_servers.host.settings import AGENTGYM, OPENENV, OWN, ServeSettings

_REFUSED = {"type": "websocket.close", "code": 1008}
"""Sent before a connection is accepted, it becomes a response with status 403."""

MAX_VALUES: Final = 1_000
"""Values in the JSON of a request: an action, a seed or the name of a task."""
MAX_ROLLOUT_VALUES: Final = 250_000
"""Values in a request of NeMo Gym, which has a whole rollout, with a model's tokens."""


def web_socket_app(
    codec: Codec,
    open_connection: Callable[[str], Connection | None],
    idle_s: float,
    guard: RequestGuard,
) -> App:
    """Serves the WebSockets of a protocol; one that is silent for `idle_s` seconds is closed."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await receive()  # the request to connect
        headers = headers_of(scope)
        error = guard.check_headers(headers) or codec.unauthorized(
            scope["path"], headers.get(b"authorization", "")
        )
        connection = open_connection(scope["path"])
        known = scope["path"] if connection is not None else "unknown"
        count(codec.figures.requests, known)
        if error is not None or connection is None:
            if error is not None:
                count(codec.figures.errors, error.code)
            await send(_REFUSED)
            return
        if (socket := scope.get(CONNECTION)) is not None:
            socket.admitted()
        await send({"type": "websocket.accept"})
        try:
            await _converse(connection, idle_s, receive, send)
        finally:
            await connection.on_close()

    return app


async def _converse(connection: Connection, idle_s: float, receive: Receive, send: Send) -> None:
    outgoing = await connection.on_open()
    while await _send_outgoing(outgoing, send):
        try:
            async with asyncio.timeout(None if idle_s == float("inf") else idle_s):
                message = await receive()
        except TimeoutError:
            outgoing = await connection.on_idle()
            continue
        if message["type"] == "websocket.disconnect":
            return
        text = _text_of(message)
        if has_more_values(text.encode("utf-8", "replace"), MAX_VALUES):
            await send({"type": "websocket.close", "code": 1009})  # as for a message that is long
            return
        outgoing = await connection.on_message(text)
        del message, text  # they may be long, and the next one may come late


async def _send_outgoing(outgoing: Outgoing, send: Send) -> bool:
    """Send a message, if there is one; whether the connection stays open."""
    if outgoing.text is not None:
        await send({"type": "websocket.send", "text": outgoing.text})
    if outgoing.closes:
        await send({"type": "websocket.close", "code": 1000})
    return not outgoing.closes


def _text_of(message: MutableMapping[str, Any]) -> str:
    text = message.get("text")
    # Binary frames are decoded like text; invalid UTF-8 is rejected later as invalid JSON.
    return message["bytes"].decode("utf-8", "replace") if text is None else str(text)


def app_of(service: Service, settings: ServeSettings) -> App:
    """The application that speaks the protocol of the settings."""
    return _MAKERS[settings.protocol](service, settings)


def implied_kwargs(protocol: str, env_id: str) -> Mapping[str, Any]:
    """The environment's settings that a protocol implies; those of the user take precedence."""
    if protocol != AGENTGYM:
        return {}
    from agentgym_servers.host.protocols.agentgym import original_kwargs

    return original_kwargs(env_id)


def _own(service: Service, settings: ServeSettings) -> App:
    return make_app(service, guard=settings.guard())


def _agentgym(service: Service, settings: ServeSettings) -> App:
    from agentgym_servers.host.protocols.agentgym import original_protocol

    answerer = original_protocol(service, settings.env_id, settings.session_ttl_s)
    return make_app(service, _limited(service, answerer), guard=settings.guard())


def _openenv(service: Service, settings: ServeSettings) -> App:
    from agentgym_adapters.openenv_server import OpenEnvServer

    guard, openenv = settings.guard(), OpenEnvServer(SingleCalls(service))
    sockets = web_socket_app(service.codec, openenv.connection, settings.session_ttl_s, guard)
    answerer = _limited(service, partial(_answer, service, openenv))
    return make_app(service, answerer, sockets, guard)


def _nemo_gym(service: Service, settings: ServeSettings) -> App:
    from agentgym_adapters.nemo_gym_server import NemoGymServer

    protocol = NemoGymServer(SingleCalls(service), settings.session_ttl_s, settings.max_sessions)
    answerer = _limited(service, partial(_answer, service, protocol), MAX_ROLLOUT_VALUES)
    return make_app(service, answerer, guard=settings.guard())


def _mcp(service: Service, settings: ServeSettings) -> App:
    from agentgym_adapters.mcp_server import McpServer

    protocol = McpServer(SingleCalls(service), settings.session_ttl_s, settings.max_sessions)
    answerer = _limited(service, partial(_answer, service, protocol))
    return make_app(service, answerer, guard=settings.guard())


_MAKERS: Final[dict[str, Callable[[Service, ServeSettings], App]]] = {
    OWN: _own,
    AGENTGYM: _agentgym,
    OPENENV: _openenv,
    "nemo-gym": _nemo_gym,
    "mcp": _mcp,
}


def client_address(protocol: str, url: str) -> str:
    """The address that clients of a protocol connect to, on the server at `url`."""
    if protocol == "mcp":
        from agentgym_adapters.mcp_server import PATH

        return f"{url}{PATH}"
    # AgentGym's own clients take the URL; ours choose the protocol by the prefix.
    return f"{url}, or agentgym+{url} in agentgym-sdk" if protocol == AGENTGYM else url


def check_protocol(settings: ServeSettings) -> None:
    """Raise for settings that a protocol does not support, and for a missing extra."""
    if settings.protocol == OPENENV and importlib.util.find_spec("websockets") is None:
        raise MissingExtra(
            "--protocol openenv needs websockets: pip install 'agentgym-sdk[serve,openenv]'"
        )
    if settings.protocol == "mcp":
        importlib.import_module("agentgym_adapters.mcp_server")  # raises MissingExtra
    several = settings.workers > 1 and not settings.isolated
    if several and settings.protocol not in (OWN, OPENENV):
        raise BadRequest(
            f"--protocol {settings.protocol} keeps its sessions in one process; omit --workers"
        )


def _limited(service: Service, answerer: Answerer, limit: int = MAX_VALUES) -> Answerer:
    """An answerer to which no body comes that has more than `limit` values in its JSON."""

    async def answer(call: HttpCall) -> Answer | HeadedAnswer:
        if has_more_values(call.body, limit):
            text = f"the body's JSON has more than {limit} values; send shorter lists and objects"
            return service.codec.fail(WireError("too_large", text))
        return await answerer(call)

    return answer


async def _answer(
    service: Service, protocol: HttpProtocol, call: HttpCall
) -> Answer | HeadedAnswer:
    """Answer a call of a foreign protocol. `/metrics` is our own; none of them defines it."""
    if call.path == routes.METRICS.path:
        return await answer_call(service, call)
    headers = {name.decode("latin-1"): value for name, value in call.headers.items()}
    reply = await protocol.answer(HttpRequest(call.method, call.path, call.body, headers))
    count(service.codec.figures.requests, protocol.route(call.path))
    body = b"" if reply.body is None else encode(reply.body)
    fields = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    return HeadedAnswer((reply.status, JSON, body), fields, reply.if_unread)
