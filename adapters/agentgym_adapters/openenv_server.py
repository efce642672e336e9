"""`--protocol openenv`: one of our environments as an OpenEnv server.

A WebSocket on `/ws` is a session, as for every OpenEnv client. The routes of HTTP have no
sessions in OpenEnv: each call there opens one and ends it.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

import msgspec

from agentgym_adapters import openenv_wire as wire
from agentgym_adapters.openenv_tasks import OpenEnvTasks
from agentgym_adapters.served import HttpRequest, Outgoing, Refused, Reply, Served, ServedEpisode
from agentgym_adapters.validation import InvalidMessage, convert, invalid_message, read_json
from agentgym_env.errors import UnknownSplit
from agentgym_env.wire import STATUS, ResetReply, encode

_ROUTES: Final = {
    "/health": {"GET": "Whether the server is up"},
    "/metadata": {"GET": "The environment's name and instruction"},
    "/schema": {"GET": "JSON schemas of actions, observations and the state"},
    "/state": {"GET": "The state of a session that has no episode; use /ws"},
    "/reset": {"POST": "The first observation of an episode that ends at once; use /ws"},
    "/step": {"POST": "Start an episode and take its first turn; use /ws"},
    "/mcp": {"POST": "JSON-RPC, without tools"},
    "/openapi.json": {"GET": "This description"},
}
_INVALID: Final = frozenset({"bad_request", "unknown_task", "unknown_split", "stale_turn"})


class OpenEnvServer:
    """The HTTP routes, and what makes the WebSocket connections."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._tasks = OpenEnvTasks(served)

    def connection(self, path: str) -> OpenEnvConnection | RpcConnection | None:
        """The handler of a WebSocket at this path; None where there is none."""
        if path == "/ws":
            return OpenEnvConnection(self._served)
        return RpcConnection() if path == "/mcp" else None

    def route(self, path: str) -> str:
        """The name under which a path is counted."""
        return path if path in _ROUTES or path in self._tasks.routes() else "unknown"

    async def answer(self, request: HttpRequest) -> Reply:
        """Answer a call."""
        methods = _ROUTES.get(request.path)
        try:
            if methods is None:
                return self._tasks.answer(request)
            if request.method not in methods:
                return Reply(405, {"detail": "Method Not Allowed"})
            return await self._answer(request.path, request.body)
        except InvalidMessage as invalid:
            return Reply(422, {"detail": invalid.errors})
        except Refused as refused:
            return Reply(STATUS.get(refused.code, 500), {"detail": refused.message})

    async def _answer(self, path: str, body: bytes) -> Reply:
        card = self._served.card()
        match path:
            case "/health":
                return Reply(200, {"status": "healthy"})
            case "/metadata":
                return Reply(200, wire.metadata(card))
            case "/schema":
                return Reply(200, wire.schemas(card))
            case "/state":
                return Reply(200, {"episode_id": None, "step_count": 0})
            case "/openapi.json":
                return Reply(200, wire.openapi(card, {**_ROUTES, **self._tasks.routes()}))
            case "/mcp":
                return Reply(200, _rpc(body))
            case "/reset":
                data = convert(read_json(body or b"{}", "body"), wire.ResetData, "body")
                return Reply(200, await self._play(data, None))
        asked = convert(read_json(body, "body"), wire.StepBody, "body")
        action = convert(asked.action, wire.ActionData, "body", "action")
        return Reply(200, await self._play(asked, action.message))

    async def _play(self, data: wire.ResetData, action: str | None) -> dict[str, Any]:
        """An episode of no turn or of one, in a session of its own."""
        episode = await ServedEpisode.open(self._served)
        try:
            first = await begin(self._served, episode, data)
            if action is None:
                return wire.reset_result(first, self._served.card().instruction)
            return wire.step_result(await episode.step(action))
        finally:
            await episode.close()


class OpenEnvConnection:
    """One WebSocket: a session that begins and ends with it."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._episode: ServedEpisode | None = None
        self._episode_id: str | None = None

    async def on_open(self) -> Outgoing:
        """Open the session; if none is available, report why and close."""
        try:
            self._episode = await ServedEpisode.open(self._served)
        except Refused as refused:
            return Outgoing(_text(await self._no_session(refused)), closes=True)
        return Outgoing()

    async def on_message(self, text: str) -> Outgoing:
        """Answer a message."""
        try:
            given = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return Outgoing(_text(wire.error_message(f"Invalid JSON: {error}", "INVALID_JSON")))
        try:
            message = convert(given, wire.WsMessage)
            if message.type == "close":
                return Outgoing(closes=True)
            return Outgoing(_text(await self._respond(message, given)))
        except InvalidMessage as invalid:
            return Outgoing(_text(_invalid(invalid.errors)))
        except Refused as refused:
            return self._refuse(refused)

    async def on_idle(self) -> Outgoing:
        """The session was idle for too long and has ended."""
        text = "the session expired; connect again"
        error = wire.error_message(text, "SESSION_ERROR", reason="unknown_session")
        return Outgoing(_text(error), closes=True)

    async def on_close(self) -> None:
        """End the session."""
        if self._episode is not None:
            await self._episode.close()

    async def _respond(self, message: wire.WsMessage, given: dict[str, Any]) -> dict[str, Any]:
        assert self._episode is not None
        match message.type:
            case "reset":
                data = convert(message.data, wire.ResetData, "data")
                reply = await begin(self._served, self._episode, data)
                self._episode_id = data.episode_id or str(uuid.uuid4())
                result = wire.reset_result(reply, self._served.card().instruction)
                return {"type": "observation", "data": result}
            case "step":
                if "data" not in given:
                    raise invalid_message(
                        "missing", ["data"], "Object missing required field `data`", given
                    )
                action = convert(message.data, wire.ActionData, "data")
                result = wire.step_result(await self._episode.step(action.message))
                return {"type": "observation", "data": result}
            case "state":
                return {"type": "state", "data": await self._state(self._episode)}
            case "mcp":
                return {"type": "mcp", "data": wire.rpc_answer(message.data)}
        text = f"Unknown message type: {message.type[:100]}"
        return wire.error_message(text, "UNKNOWN_TYPE")

    async def _state(self, episode: ServedEpisode) -> dict[str, Any]:
        actions = None if episode.over else await episode.actions()
        return {
            "episode_id": self._episode_id, "step_count": episode.turn,
            "available_actions": actions,
        }  # fmt: skip

    async def _no_session(self, refused: Refused) -> dict[str, Any]:
        card = self._served.card()
        if refused.code == "too_many_sessions":
            return wire.error_message(
                refused.message, "CAPACITY_REACHED", reason=refused.code,
                active_sessions=await self._served.sessions(), max_sessions=card.max_sessions,
            )  # fmt: skip
        if refused.code == "shutting_down":
            return wire.error_message(refused.message, "SESSION_ERROR", reason=refused.code)
        return wire.error_message(
            refused.message, "FACTORY_ERROR", reason=refused.code, factory_name=card.env
        )

    def _refuse(self, refused: Refused) -> Outgoing:
        """A rejected request. `reason` is our own code: OpenEnv has no codes for these."""
        if refused.code in ("unknown_session", "shutting_down"):
            error = wire.error_message(refused.message, "SESSION_ERROR", reason=refused.code)
            return Outgoing(_text(error), closes=True)
        if refused.code in _INVALID:
            detail = {"type": refused.code, "loc": ["data"], "msg": refused.message, "input": None}
            return Outgoing(_text(_invalid([detail], refused.code)))
        error = wire.error_message(refused.message, "EXECUTION_ERROR", reason=refused.code)
        return Outgoing(_text(error))


class RpcConnection:
    """The WebSocket of `/mcp`: JSON-RPC without tools."""

    async def on_open(self) -> Outgoing:
        """There is nothing to open."""
        return Outgoing()

    async def on_message(self, text: str) -> Outgoing:
        """Answer a message."""
        return Outgoing(_text(_rpc(text)))

    async def on_idle(self) -> Outgoing:
        """Nobody is there."""
        return Outgoing(closes=True)

    async def on_close(self) -> None:
        """There is nothing to end."""


async def begin(served: Served, episode: ServedEpisode, data: wire.ResetData) -> ResetReply:
    """Start the episode that a reset names."""
    task = data.task
    if task is None and data.index is not None:
        try:
            tasks = served.task_list(data.split or served.card().default_split).tasks
        except UnknownSplit as error:
            raise Refused("unknown_split", str(error)) from error
        if data.index >= len(tasks):
            text = f"there are {len(tasks)} tasks in this split, numbered from 0, got {data.index}"
            raise invalid_message("value_error", ["data", "index"], text, data.index)
        task = tasks[data.index]
    return await episode.reset(data.seed, task, data.split)


def _rpc(body: bytes | str) -> dict[str, Any]:
    try:
        return wire.rpc_answer(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return wire.rpc_unreadable()


def _invalid(errors: list[dict[str, Any]], reason: str = "bad_request") -> dict[str, Any]:
    place = ".".join(map(str, errors[0]["loc"]))
    text = f"Invalid message: {errors[0]['msg']} (at {place})"
    return wire.error_message(text, "VALIDATION_ERROR", errors=errors, reason=reason)


def _text(message: dict[str, Any]) -> str:
    return encode(message).decode()
