"""`--protocol mcp`: an environment as an MCP server over streamable HTTP, on `/mcp`.

The official SDK speaks the protocol; sessions, limits and the token stay the host's. The tools are
`reset`, `step` and `available_actions`. Up to revision 2025-11-25 a client's MCP session plays one
episode at a time. Revision 2026-07-28 has no sessions: its `reset` returns a name for the episode,
which the other tools take, and a fourth, `close`, ends it. Answers are plain JSON; there are no
streams.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from agentgym_adapters.idle_records import IdleRecords
from agentgym_adapters.served import HttpRequest, Refused, Reply, Served, ServedEpisode
from agentgym_adapters.validation import InvalidMessage, convert, read_json
from agentgym_env.errors import MissingExtra
from agentgym_env.wire import MAX_SEED, EnvCard

try:
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.shared.exceptions import MCPError
    from mcp.types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
    from pydantic import ValidationError
except ImportError as error:
    raise MissingExtra(
        "--protocol mcp needs version 2 of mcp: pip install 'agentgym-sdk[serve,mcp]' 'mcp>=2'"
    ) from error

PATH: Final = "/mcp"
SESSION: Final = "mcp-session-id"
EPISODE: Final = "episode"
"""The argument that names an episode where there are no sessions."""
_OPENED: Final = "agentgym.opened"
"""The key of a request's ASGI scope that has the list of the episodes that it opened."""
_NAMED: Final[Mapping[str, Any]] = {EPISODE: {"type": "string", "description": "From reset."}}
_TOOLS: Final = ("reset", "step", "available_actions")
_CLOSE: Final = "close"
"""The tool that ends an episode where there are no sessions."""
_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_INVALID_PARAMS: Final = -32602
_INTERNAL_ERROR: Final = -32603
_SERVER_ERROR: Final = -32000
_IN_BAND: Final = frozenset({"bad_request", "unknown_task", "unknown_split", "episode_over"})
"""Errors that a model can correct, and so reads; any other is an error of the protocol."""
_IDLE_CLIENTS: Final = 1000
"""Clients that only list tools have a session of the SDK and none of the host's."""
_INITIALIZE: Final[Mapping[str, Any]] = {
    "protocolVersion": LATEST_HANDSHAKE_VERSION,
    "capabilities": {},
    "clientInfo": {"name": "unknown", "version": "0"},
}
"""What a client may leave out of `initialize`."""


class ResetArguments(Struct, forbid_unknown_fields=True):
    """Arguments of the tool `reset`."""

    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    task: str | None = None
    split: str | None = None


class StepArguments(Struct, forbid_unknown_fields=True):
    """Arguments of the tool `step`."""

    action: str


class NoArguments(Struct, forbid_unknown_fields=True):
    """Arguments of the tools `available_actions` and `close`."""


class McpServer:
    """The endpoint. Clients and episodes idle for `ttl_s` seconds are dropped."""

    def __init__(self, served: Served, ttl_s: float, max_sessions: int) -> None:
        self._served = served
        self._ttl_s = ttl_s if math.isfinite(ttl_s) else None
        self._max_clients = max_sessions + _IDLE_CLIENTS
        # As many as there can be, so that no client displaces another one's.
        self._clients: IdleRecords[_Client] = IdleRecords(ttl_s, self._max_clients)
        self._episodes: IdleRecords[_Client] = IdleRecords(ttl_s, max_sessions)
        """Those that are named where there are no sessions."""
        self._manager: StreamableHTTPSessionManager | None = None
        self._started = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def route(self, path: str) -> str:
        """The name under which a path is counted."""
        return path if path in (PATH, "/health") else "unknown"

    async def answer(self, request: HttpRequest) -> Reply:
        """Answer a call."""
        if request.path == "/health" and request.method == "GET":
            return Reply(200, {"status": "ok", "env": self._served.card().env})
        if request.path != PATH:
            return Reply(404, {"detail": f"there is no {request.path[:200]}; MCP is at {PATH}"})
        if request.method not in ("POST", "DELETE"):
            return Reply(405, {"detail": "Method Not Allowed"}, {"allow": "POST, DELETE"})
        body = request.body
        if request.method == "POST":
            try:
                message = read_json(body)
            except InvalidMessage as invalid:
                return Reply(400, _error(_PARSE_ERROR, str(invalid)))
            try:
                types.jsonrpc_message_adapter.validate_python(message, by_name=False)
            except ValidationError:
                return Reply(400, _error(_INVALID_REQUEST, "this is not a message of JSON-RPC 2.0"))
            if message.get("method") == "initialize":
                params = {**_INITIALIZE, **(message.get("params") or {})}
                body = msgspec.json.encode({**message, "params": params})
        opened: list[str] = []
        reply = await self._pass_on(request, body, opened)
        if opened:
            (name,) = opened
            reply = replace(
                reply, if_unread=partial(self._end_unused, name, self._episodes.get(name))
            )
        ended = request.method == "DELETE" and reply.status == 200
        if ended and (client := self._clients.pop(request.headers.get(SESSION, ""))):
            await client.close()
        return reply

    async def _pass_on(self, request: HttpRequest, body: bytes, opened: list[str]) -> Reply:
        """Pass a call to the SDK's ASGI application, and collect its answer.

        `opened` gets the name of an episode that the call opens.
        """
        manager = await self._start()
        headers = {"accept": "application/json, text/event-stream", **request.headers}
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
            "method": request.method, "path": PATH, "query_string": b"",
            "headers": [(key.encode(), value.encode("latin-1")) for key, value in headers.items()],
            _OPENED: opened,
        }  # fmt: skip
        incoming = iter([{"type": "http.request", "body": body, "more_body": False}])
        start: MutableMapping[str, Any] = {}
        chunks: list[bytes] = []

        async def receive() -> MutableMapping[str, Any]:
            for message in incoming:
                return message
            await asyncio.Event().wait()
            raise AssertionError("nothing follows the body")

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                chunks.append(message.get("body", b""))

        await manager.handle_request(scope, receive, send)
        fields = {
            name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]
        }
        kept = {name: fields[name] for name in (SESSION, "allow") if name in fields}
        content = b"".join(chunks)
        return Reply(start["status"], msgspec.Raw(content) if content else None, kept)

    async def _start(self) -> StreamableHTTPSessionManager:
        """The SDK's server, which the first call starts; it ends with the event loop."""
        if self._manager is None:
            card = self._served.card()
            server: Server[Any] = Server(
                card.env, version=card.version or "0", instructions=card.instruction,
                on_list_tools=self._list_tools, on_call_tool=self._call_tool,
            )  # fmt: skip
            # At INFO the SDK logs the ids of sessions, which let anyone play in them.
            logging.getLogger("mcp.server").setLevel(logging.WARNING)
            # The host has checked the size of the body, its type, the Host and the Origin.
            self._manager = StreamableHTTPSessionManager(
                server, json_response=True, session_idle_timeout=self._ttl_s,
                max_sessions=self._max_clients, max_request_body_size=2**62,
            )  # fmt: skip
            self._running = asyncio.create_task(self._run(self._manager))
        await self._started.wait()
        return self._manager

    async def _run(self, manager: StreamableHTTPSessionManager) -> None:
        try:
            async with manager.run():
                self._started.set()
                await asyncio.Event().wait()
        finally:
            # Without a running manager a call fails; it does not wait for ever.
            self._started.set()

    async def _list_tools(
        self, context: Any, _: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        listed = tools(self._served.card(), named=_has_no_sessions(context))
        return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in listed])

    async def _call_tool(
        self, context: Any, call: types.CallToolRequestParams
    ) -> types.CallToolResult:
        has_names = _has_no_sessions(context)
        if call.name not in (*_TOOLS, *([_CLOSE] if has_names else [])):
            raise MCPError(_INVALID_PARAMS, f"Unknown tool: {call.name[:100]}")
        arguments = dict(call.arguments or {})
        try:
            if has_names:
                return await self._use_named(call.name, arguments, context.request.scope[_OPENED])
            client = self._session_of(context.request.headers[SESSION])
            return await self._use(client, call.name, arguments)
        except InvalidMessage as invalid:
            place = ".".join(map(str, invalid.errors[0]["loc"]))
            return _failed(f"{call.name} was called wrongly: {invalid} ({place})")
        except Refused as refused:
            if refused.code in _IN_BAND:
                return _failed(refused.message)
            in_world = refused.code in ("environment_error", "deadline")
            code = _INTERNAL_ERROR if in_world else _SERVER_ERROR
            raise MCPError(code, refused.message, {"code": refused.code}) from refused

    def _session_of(self, name: str) -> _Client:
        client = self._clients.get(name)
        if client is None:
            client = _Client()
            self._clients.put(name, client)
        return client

    async def _use_named(
        self, tool: str, arguments: dict[str, Any], opened: list[str]
    ) -> types.CallToolResult:
        """Use a tool on the episode that the arguments name; a `reset` without a name opens one."""
        name = arguments.pop(EPISODE, None)
        if name is not None:
            client = self._episodes.get(name) if isinstance(name, str) else None
            if client is None:
                raise Refused("episode_over", "the episode is unknown or expired; call reset")
            client.used = True
            if tool == _CLOSE:
                return await self._close(name, arguments)
            return await self._use(client, tool, arguments, name)
        if tool != "reset":
            raise Refused("bad_request", f"{tool} takes the {EPISODE} that reset returned")
        name, client = secrets.token_urlsafe(18), _Client()
        try:
            result = await self._use(client, tool, arguments, name)
        except BaseException:
            await client.close()
            raise
        self._episodes.put(name, client)
        opened.append(name)
        return result

    async def _end_unused(self, name: str, client: _Client | None) -> None:
        """End an episode whose name nobody has received."""
        if client is not None and not client.used:
            self._episodes.pop(name)
            await client.close()

    async def _close(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """End an episode before its end, or its place on the server after it."""
        convert(arguments, NoArguments)
        client = self._episodes.pop(name)
        if client is not None:
            await client.close()
        return _result(["The episode is closed."], {"closed": client is not None})

    async def _use(
        self, client: _Client, tool: str, arguments: dict[str, Any], name: str | None = None
    ) -> types.CallToolResult:
        async with client.lock:
            try:
                if tool == "reset":
                    return await self._reset(client, convert(arguments, ResetArguments), name)
                if client.episode is None:
                    raise Refused("episode_over", "no episode was started; call reset first")
                if tool == "step":
                    return await _step(client.episode, convert(arguments, StepArguments).action)
                convert(arguments, NoArguments)
                return _listed(await client.episode.actions())
            except Refused as refused:
                if refused.code == "unknown_session":
                    # The next reset opens another.
                    client.episode = None
                raise

    async def _reset(
        self, client: _Client, start: ResetArguments, name: str | None
    ) -> types.CallToolResult:
        if client.episode is None:
            client.episode = await ServedEpisode.open(self._served)
        reply = await client.episode.reset(start.seed, start.task, start.split)
        named = {} if name is None else {EPISODE: name}
        texts = [reply.observation, *(f"{key}: {value}" for key, value in named.items())]
        return _result(texts, {"observation": reply.observation, "info": reply.info, **named})


class _Client:
    """One client's session or one named episode, and the host's session that it plays in."""

    def __init__(self) -> None:
        self.episode: ServedEpisode | None = None
        self.used = False
        """Whether a call has named it."""
        self.lock = asyncio.Lock()

    async def close(self) -> None:
        """End the host's session."""
        async with self.lock:
            episode, self.episode = self.episode, None
            if episode is not None:
                await episode.close()


def tools(card: EnvCard, *, named: bool) -> list[dict[str, Any]]:
    """The tools of an environment; `named` where an argument names the episode."""
    text = {"type": "string", "maxLength": card.observation_max_length}
    info = {"type": "object"}
    extra, required = (_NAMED, [EPISODE]) if named else ({}, [])
    return [
        {
            "name": "reset",
            "description": "Start an episode and get the first observation.",
            "inputSchema": _object(
                seed={"type": "integer", "minimum": 0, "maximum": MAX_SEED},
                task={"type": "string", "description": "A task's id; left out, one is drawn."},
                split={"type": "string", "enum": [*card.splits, *card.selections]},
                **extra,
            ),
            "outputSchema": _object(
                ["observation", "info", *required], observation=text, info=info, **extra
            ),
        },
        {
            "name": "step",
            "description": "Take one action in the episode. " + card.instruction,
            "inputSchema": _object(
                ["action", *required],
                action={"type": "string", "maxLength": card.action_max_length},
                **extra,
            ),
            "outputSchema": _object(
                ["observation", "reward", "terminated", "truncated", "info"],
                observation=text,
                reward={"type": "number", "description": "Of this step alone."},
                terminated={"type": "boolean"},
                truncated={"type": "boolean"},
                info=info,
            ),
        },
        {
            "name": "available_actions",
            "description": "What can be done now; null where the environment does not list it.",
            "inputSchema": _object(required, **extra),
            "outputSchema": _object(
                ["actions"],
                actions={"type": ["array", "null"], "items": {"type": "string"}},
            ),
            "annotations": {"readOnlyHint": True},
        },
        *([_close_tool()] if named else []),
    ]


def _close_tool() -> dict[str, Any]:
    return {
        "name": _CLOSE,
        "description": "End an episode that is not needed any more.",
        "inputSchema": _object([EPISODE], **_NAMED),
        "outputSchema": _object(["closed"], closed={"type": "boolean"}),
    }


async def _step(episode: ServedEpisode, action: str) -> types.CallToolResult:
    """Take a step; a model that sees only texts reads of the end."""
    reply = await episode.step(action)
    texts = [reply.observation]
    if reply.terminated or reply.truncated:
        texts.append(f"The episode has ended; its last reward was {reply.reward:g}.")
    return _result(
        texts,
        {
            "observation": reply.observation, "reward": reply.reward,
            "terminated": reply.terminated, "truncated": reply.truncated, "info": reply.info,
        },
    )  # fmt: skip


def _listed(actions: list[str] | None) -> types.CallToolResult:
    unlisted = "This environment does not list its actions."
    return _result([unlisted if actions is None else "\n".join(actions)], {"actions": actions})


def _result(texts: list[str], structured: Mapping[str, Any]) -> types.CallToolResult:
    content = [types.TextContent(type="text", text=text) for text in texts]
    return types.CallToolResult(content=content, structured_content=structured)


def _failed(message: str) -> types.CallToolResult:
    """The result of a call that the model can correct."""
    content = [types.TextContent(type="text", text=message)]
    return types.CallToolResult(content=content, is_error=True)


def _has_no_sessions(context: Any) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def _error(code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}


def _object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema
