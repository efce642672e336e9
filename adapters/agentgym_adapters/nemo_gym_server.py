"""`--protocol nemo-gym`: one of our environments as a Gymnasium-style resources server of NeMo Gym.

Its `gymnasium_agent` sends the rows of a dataset to `/reset`, a model's responses to `/step`, and
`/close` (NeMo Gym 0.4 to 0.7). A session is a signed cookie, whose record stands here.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import Any

from agentgym_adapters import nemo_gym_wire as wire
from agentgym_adapters.idle_records import IdleRecords
from agentgym_adapters.served import HttpRequest, Refused, Reply, Served, ServedEpisode, Undo
from agentgym_adapters.signed_cookie import SignedCookie
from agentgym_adapters.validation import InvalidMessage, convert, invalid_message, read_json
from agentgym_env.actions import FORMATS, ActionError
from agentgym_env.wire import STATUS

logger = logging.getLogger(__name__)

COOKIE = "agentgym_session"
_ALIVE = frozenset({"/", "/health", "/healthz", "/livez", "/readyz"})
_POSTS = frozenset({"/reset", "/step", "/close", "/aggregate_metrics"})
_ROLLOUT_PREFIX = "/ng-rollout/"


class NemoGymServer:
    """The routes of a resources server. Records are dropped after `ttl_s` seconds without use."""

    def __init__(self, served: Served, ttl_s: float, max_sessions: int) -> None:
        self._served = served
        self._cookie = SignedCookie(COOKIE)
        self._playing: IdleRecords[_Record] = IdleRecords(ttl_s, max_sessions)
        self._ended: IdleRecords[_Record] = IdleRecords(ttl_s, max_sessions)
        """An episode that has ended keeps its record, so that its last step may be asked for again.
        These are apart, so that no number of them displaces a record of an episode in play."""

    def route(self, path: str) -> str:
        """By what name a path is counted."""
        plain = _plain_path(path)
        return plain if plain in _POSTS or plain in _ALIVE else "unknown"

    async def answer(self, request: HttpRequest) -> Reply:
        """Answer a call."""
        path = _plain_path(request.path)
        if request.method == "GET" and path in _ALIVE:
            return Reply(200, {"status": "ok", "env": self._served.card().env})
        if path not in _POSTS:
            return Reply(404, {"detail": "Not Found"})
        if request.method != "POST":
            return Reply(405, {"detail": "Method Not Allowed"})
        name = self._cookie.read(request.headers.get("cookie", ""))
        try:
            # What is decoded may be large: nothing holds it while a world is waited for.
            if path == "/aggregate_metrics":
                given = read_json(request.body or b"{}", "body")
                return Reply(200, wire.aggregate(convert(given, wire.MetricsBody, "body")))
            if path == "/reset":
                return await self._reset(name, request.body)
            if path == "/step":
                return await self._step(name, request.body)
            read_json(request.body or b"{}", "body")
            return await self._close(name)
        except InvalidMessage as invalid:
            return Reply(422, {"detail": invalid.errors})
        except Refused as refused:
            return Reply(STATUS.get(refused.code, 500), wire.error_body(refused.code, str(refused)))

    async def _reset(self, name: str | None, sent: bytes) -> Reply:
        row = wire.read_row(read_json(sent or b"{}", "body"))
        if row.action_format not in FORMATS:
            text = f"no action format {row.action_format!r}; available: {', '.join(FORMATS)}"
            raise invalid_message("value_error", ["body", "action_format"], text, row.action_format)
        record, earlier = _Record(row.action_format), self._find(name)
        if name is not None and earlier is not None:
            async with earlier.lock:
                record.episode, earlier.episode = earlier.episode, None
            self._has_ended(name, earlier)
        first = await self._begin(record, row)
        # An episode has a cookie of its own: who knows one of an earlier episode has no part in it.
        name = secrets.token_urlsafe(18)
        self._playing.put(name, record)
        info = {
            **first.info,
            "instruction": self._served.card().instruction,
            "supports_explicit_close": True,
            "supports_step_idempotency": True,
        }
        undo = partial(self._end_unused, name, record)
        return self._answered(name, {"observation": first.observation, "info": info}, undo)

    def _find(self, name: str | None) -> _Record | None:
        if name is None:
            return None
        record = self._playing.get(name) or self._ended.get(name)
        if record is not None:
            record.used = True
        return record

    def _drop(self, name: str) -> _Record | None:
        return self._playing.pop(name) or self._ended.pop(name)

    def _has_ended(self, name: str, record: _Record) -> None:
        self._drop(name)
        self._ended.put(name, record)

    async def _end_unused(self, name: str, record: _Record) -> None:
        """End a session whose cookie nobody has received."""
        if not record.used:
            self._drop(name)
            async with record.lock:
                await record.end()

    async def _begin(self, record: _Record, row: wire.Row) -> Any:
        if record.episode is None:
            record.episode = await ServedEpisode.open(self._served)
        try:
            first = await record.episode.reset(row.seed, row.task, row.split)
        except Refused:
            # A rollout whose reset failed is over; its agent does not close what never began.
            await record.end()
            raise
        return first

    async def _step(self, name: str | None, sent: bytes) -> Reply:
        body = convert(read_json(sent or b"{}", "body"), wire.StepBody, "body")
        record = self._find(name)
        if name is None or record is None:
            text = "session closed, expired or unknown; reset first"
            raise Refused("unknown_session", text)
        request_id, turn = body.request_id, _read_turn(body.response, record.action_format)
        del body
        async with record.lock:
            if record.answered is not None and record.answered[0] == request_id:
                return self._answered(name, record.answered[1])
            if record.episode is None:
                raise Refused("episode_over", "the episode has ended; reset before stepping")
            content = await _take_turn(record.episode, *turn)
            if request_id is not None:
                record.answered = (request_id, content)
            if content["terminated"] or content["truncated"]:
                await record.end()
                self._has_ended(name, record)
        return self._answered(name, content)

    async def _close(self, name: str | None) -> Reply:
        record = None if name is None else self._drop(name)
        if record is not None:
            await record.end()
        return Reply(200, {"closed": record is not None})

    def _answered(self, name: str, content: dict[str, Any], if_unread: Undo | None = None) -> Reply:
        # Sent with every answer: agents keep the cookies of the last one.
        return Reply(200, content, {"set-cookie": self._cookie.write(name)}, if_unread)


class _Record:
    """The record of a cookie: an episode, in play or ended."""

    def __init__(self, action_format: str) -> None:
        self.episode: ServedEpisode | None = None
        self.action_format = action_format
        self.used = False
        """Whether a request has named it."""
        self.answered: tuple[str, dict[str, Any]] | None = None
        """The last step's request id and its answer, for an agent that asks again."""
        self.lock = asyncio.Lock()

    async def end(self) -> None:
        """End the session; the last answer stays."""
        episode, self.episode = self.episode, None
        if episode is not None:
            await episode.close()


def _read_turn(response: wire.Response, action_format: str) -> tuple[str | ActionError, list[str]]:
    """The action of a response, and the ids of its calls."""
    calls = wire.function_calls(response)
    if calls:
        action = wire.called_action(calls[0])
    else:
        action = FORMATS[action_format].parse(wire.output_text(response))
    return action, [str(call.get("call_id")) for call in calls]


async def _take_turn(
    episode: ServedEpisode, action: str | ActionError, call_ids: list[str]
) -> dict[str, Any]:
    if isinstance(action, ActionError):
        return wire.step_content(action.message, call_ids)
    reply = await episode.step(action)
    return wire.step_content(reply.observation, call_ids, reply)


def _plain_path(path: str) -> str:
    """The path without `/ng-rollout/ID`, which NeMo Gym adds for its logs."""
    if path.startswith(_ROLLOUT_PREFIX):
        rest = path.removeprefix(_ROLLOUT_PREFIX).partition("/")[2]
        return "/" + rest.removeprefix("training-token-capture/")
    return path
