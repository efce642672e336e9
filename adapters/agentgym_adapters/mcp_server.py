"""`--protocol mcp`: one of our environments as an MCP server over streamable HTTP, on `/mcp`.

Its tools are `reset`, `step` and `available_actions`. A client's session opens one of ours with its
first `reset`. Answers are plain JSON: the server has nothing to say unasked, so it has no streams.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

from agentgym_adapters import mcp_wire as wire
from agentgym_adapters.idle_records import IdleRecords
from agentgym_adapters.served import HttpRequest, Refused, Reply, Served, ServedEpisode
from agentgym_adapters.validation import InvalidMessage, convert, read_json

PATH: Final = "/mcp"
SESSION: Final = "mcp-session-id"
VERSION: Final = "mcp-protocol-version"
_IN_BAND: Final = frozenset({"bad_request", "unknown_task", "unknown_split", "episode_over"})
"""What a model may put right; anything else is no answer to it."""


class McpServer:
    """The endpoint. Sessions that `ttl_s` seconds nobody spoke to are dropped."""

    def __init__(self, served: Served, ttl_s: float, max_sessions: int) -> None:
        self._served = served
        # Clients that only list tools hold a record and none of our sessions.
        self._clients: IdleRecords[_Client] = IdleRecords(ttl_s, 2 * max_sessions)

    def route(self, path: str) -> str:
        """By what name a path is counted."""
        return path if path in (PATH, "/health") else "unknown"

    async def answer(self, request: HttpRequest) -> Reply:
        """Answer a call."""
        if request.path == "/health" and request.method == "GET":
            return Reply(200, {"status": "ok", "env": self._served.card().env})
        if request.path != PATH:
            return Reply(404, {"detail": f"there is no {request.path[:200]}; MCP is at {PATH}"})
        if request.method == "DELETE":
            return await self._end(request.headers.get(SESSION, ""))
        if request.method != "POST":
            return Reply(405, {"detail": "Method Not Allowed"}, {"allow": "POST, DELETE"})
        try:
            given = read_json(request.body)
        except InvalidMessage as invalid:
            return Reply(400, wire.error(None, wire.PARSE_ERROR, str(invalid)))
        try:
            message = convert(given, wire.Message)
        except InvalidMessage as invalid:
            return Reply(400, wire.error(None, wire.INVALID_REQUEST, str(invalid)))
        if message.jsonrpc != "2.0":
            return Reply(400, wire.error(None, wire.INVALID_REQUEST, "this is not JSON-RPC 2.0"))
        if message.method is None or "id" not in given:
            # A notification, or an answer to a question that was never asked.
            return Reply(202)
        return await self._respond(message.method, message, request)

    async def _respond(self, method: str, message: wire.Message, request: HttpRequest) -> Reply:
        if method == "initialize":
            name = secrets.token_urlsafe(18)
            self._clients.put(name, _Client())
            content = wire.initialized(message.params.get("protocolVersion"), self._served.card())
            return Reply(200, wire.result(message.id, content), {SESSION: name})
        if method not in ("ping", "tools/list", "tools/call"):
            text = f"Method not found: {method[:100]}"
            return Reply(200, wire.error(message.id, wire.METHOD_NOT_FOUND, text))
        name = request.headers.get(SESSION, "")
        if not name:
            text = "Missing session ID: send initialize, then the header Mcp-Session-Id it gave"
            return Reply(400, wire.error(message.id, wire.INVALID_REQUEST, text))
        client = self._clients.get(name)
        if client is None:
            text = "Session not found: it ended or stood idle too long; send initialize again"
            return Reply(404, wire.error(message.id, wire.INVALID_REQUEST, text))
        version = request.headers.get(VERSION, wire.VERSIONS[0])
        if version not in wire.VERSIONS:
            text = f"Unsupported protocol version {version[:40]!r}; use {', '.join(wire.VERSIONS)}"
            return Reply(400, wire.error(message.id, wire.INVALID_REQUEST, text))
        if method == "ping":
            return Reply(200, wire.result(message.id, {}))
        if method == "tools/list":
            return Reply(200, wire.result(message.id, {"tools": wire.tools(self._served.card())}))
        return Reply(200, await self._call(client, message))

    async def _call(self, client: _Client, message: wire.Message) -> dict[str, Any]:
        try:
            call = convert(message.params, wire.CallParams, "params")
        except InvalidMessage as invalid:
            return wire.error(message.id, wire.INVALID_PARAMS, str(invalid))
        if call.name not in ("reset", "step", "available_actions"):
            text = f"Unknown tool: {call.name[:100]}"
            return wire.error(message.id, wire.INVALID_PARAMS, text)
        async with client.lock:
            try:
                content = await self._use(client, call.name, call.arguments or {})
            except InvalidMessage as invalid:
                place = ".".join(map(str, invalid.errors[0]["loc"]))
                content = wire.failed_content(
                    f"{call.name} was called wrongly: {invalid} ({place})"
                )
            except Refused as refused:
                if refused.code not in _IN_BAND:
                    return self._fail(message.id, refused, client)
                content = wire.failed_content(refused.message)
        return wire.result(message.id, content)

    async def _use(self, client: _Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if tool == "reset":
            start = convert(arguments, wire.ResetArguments)
            if client.episode is None:
                client.episode = await ServedEpisode.open(self._served)
            reply = await client.episode.reset(start.seed, start.task, start.split)
            return wire.reset_content(reply)
        if client.episode is None:
            raise Refused("episode_over", "no episode was started; call reset first")
        if tool == "step":
            action = convert(arguments, wire.StepArguments).action
            return wire.step_content(await client.episode.step(action))
        convert(arguments, wire.NoArguments)
        return wire.actions_content(await client.episode.actions())

    def _fail(self, number: str | int | None, refused: Refused, client: _Client) -> dict[str, Any]:
        """A failure that is not the model's."""
        if refused.code == "unknown_session":
            # The next reset opens another.
            client.episode = None
        world = refused.code in ("environment_error", "deadline")
        code = wire.INTERNAL_ERROR if world else wire.SERVER_ERROR
        return wire.error(number, code, refused.message, refused.code)

    async def _end(self, name: str) -> Reply:
        client = self._clients.pop(name)
        if client is None:
            return Reply(404, wire.error(None, wire.INVALID_REQUEST, "Session not found"))
        async with client.lock:
            if client.episode is not None:
                await client.episode.close()
                client.episode = None
        return Reply(200, {})


class _Client:
    """A client's session and, once it has reset, the episode it plays."""

    def __init__(self) -> None:
        self.episode: ServedEpisode | None = None
        self.lock = asyncio.Lock()
