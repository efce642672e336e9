"""The host: one call in, one answer out; knows nothing about sockets.

The HTTP application and the in-process transport both go through `Host.handle`, so they agree
to the byte.
"""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET

from agentgym_env.errors import UnknownSplit
from agentgym_env.text_env import TextEnv
from agentgym_env.wire import JSON, MSGPACK, STATUS, ErrorBody, WireError, decode, encode
from agentgym_servers import routes
from agentgym_servers.metrics import Metrics
from agentgym_servers.openapi import openapi_document
from agentgym_servers.sessions import SessionTable

logger = logging.getLogger(__name__)

Answer = tuple[int, str, bytes]
"""Status, content type, body."""

_Batch = Callable[[Sequence[Any]], list[Any]]
_MAX_MESSAGE = 500


class Host:
    """Serves one session table: decodes calls, encodes answers, guards the door, counts."""

    def __init__(
        self, table: SessionTable, *, token: str | None = None, max_body_bytes: int = 16 * 2**20
    ) -> None:
        self.table = table
        self.max_body_bytes = max_body_bytes
        self._token = token
        self._metrics = Metrics()
        self._batches: dict[str, tuple[routes.Route, _Batch]] = {
            routes.SESSIONS.path: (routes.SESSIONS, table.create),
            routes.RESET.path: (routes.RESET, table.reset),
            routes.STEP.path: (routes.STEP, table.step),
            routes.CLOSE.path: (routes.CLOSE, table.close),
            routes.EXPERT.path: (routes.EXPERT, table.expert),
            routes.ACTIONS.path: (routes.ACTIONS, table.actions),
        }

    def handle(
        self,
        method: str,
        path: str,
        query: str = "",
        body: bytes = b"",
        content_type: str = "",
        accept: str = "",
        authorization: str = "",
    ) -> Answer:
        """Answer one call. It never raises: whatever comes in, an answer goes out."""
        sent = content_type.partition(";")[0].strip().lower()
        wanted = _answer_type(sent, accept)
        self._metrics.count_request(method, path)
        error = self.unauthorized(path, authorization) or self.too_large(len(body))
        if error is not None:
            return self.fail(error, wanted)
        if method == "POST" and path in self._batches:
            return self._post(*self._batches[path], body, sent, wanted)
        if method == "GET":
            return self._get(path, query, wanted)
        return self.fail(WireError("unknown_route", f"there is no {_cut(method)} {_cut(path)}"))

    def unauthorized(self, path: str, authorization: str) -> WireError | None:
        """Why a call is turned away at the door, or None."""
        if self._token is None or path == routes.HEALTH.path:
            return None
        scheme, _, given = authorization.strip().partition(" ")
        # Header bytes that are not text must compare unequal, not raise.
        token = given.strip().encode("utf-8", "surrogatepass")
        if hmac.compare_digest(token, self._token.encode()) and scheme.lower() == "bearer":
            return None
        return WireError("unauthorized", "send the server's token: Authorization: Bearer TOKEN")

    def too_large(self, body_bytes: int) -> WireError | None:
        """Why a body of this size is not read, or None."""
        if body_bytes <= self.max_body_bytes:
            return None
        limit = self.max_body_bytes
        return WireError(
            "too_large", f"the body is above the limit of {limit} bytes; send smaller batches"
        )

    def fail(self, error: WireError, content_type: str = JSON) -> Answer:
        """The answer to a call that failed as a whole."""
        self._metrics.count_error(error.code)
        return STATUS[error.code], content_type, encode(ErrorBody(error), content_type)

    def _post(
        self, route: routes.Route, run: _Batch, body: bytes, sent: str, wanted: str
    ) -> Answer:
        if sent not in ("", JSON, MSGPACK):
            text = f"content type {_cut(sent)!r} is not read here; send {JSON} or {MSGPACK}"
            return self.fail(WireError("bad_request", text), wanted)
        try:
            requests = decode(body, route.takes, sent or JSON)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = f"the body is not what {route.path} takes: {_cut(str(error))}"
            return self.fail(WireError("bad_request", text), wanted)
        replies = run(requests)
        self._metrics.count_items(route.path, len(replies))
        return self._answer(replies, wanted)

    def _answer(self, replies: list[Any], wanted: str) -> Answer:
        """200 unless every item failed: then the first item's status."""
        try:
            body = encode(replies, wanted)
        except Exception as error:
            # One world's info cannot be written; the others' replies must still go out.
            logger.debug("a batch of %d cannot be written: %s", len(replies), error)
            replies = [self._sendable(reply, wanted) for reply in replies]
            body = encode(replies, wanted)
        failures = [e for e in (getattr(r, "error", UNSET) for r in replies) if e is not UNSET]
        for failure in failures:
            self._metrics.count_error(failure.code)
        all_failed = bool(failures) and len(failures) == len(replies)
        return (STATUS[failures[0].code] if all_failed else 200), wanted, body

    def _sendable(self, reply: Any, wanted: str) -> Any:
        try:
            encode(reply, wanted)
        except Exception as error:
            return self.table.unsendable(reply, error)
        return reply

    def _get(self, path: str, query: str, wanted: str) -> Answer:
        if path == routes.ENV.path:
            return 200, wanted, encode(self.table.card(), wanted)
        if path == routes.TASKS.path:
            return self._get_tasks(query, wanted)
        if path == routes.HEALTH.path:
            health = {"status": "ok", "env": self.table.card().env, "sessions": len(self.table)}
            return 200, JSON, encode(health)
        if path == routes.METRICS.path:
            self.table.reap()
            return (200, "text/plain; version=0.0.4", self._metrics.page(self.table).encode())
        if path == routes.OPENAPI.path:
            return 200, JSON, encode(openapi_document(self.table.card()))
        return self.fail(WireError("unknown_route", f"there is no GET {_cut(path)}"))

    def _get_tasks(self, query: str, wanted: str) -> Answer:
        try:
            splits = parse_qs(query, max_num_fields=8).get("split", [])
        except ValueError:
            splits = []
        if len(splits) != 1:
            names = ", ".join(self.table.card().splits)
            return self.fail(
                WireError("bad_request", f"name one split: /v1/tasks?split=NAME, of {names}"),
                wanted,
            )
        try:
            return 200, wanted, encode(self.table.task_list(splits[0]), wanted)
        except UnknownSplit as error:
            return self.fail(WireError("unknown_split", _cut(str(error))), wanted)


def in_process_host(make_env: Callable[[], TextEnv], env_id: str) -> Host:
    """A host for this process alone: nobody else can take its sessions or leave them behind."""
    return Host(SessionTable(make_env, env_id=env_id, max_sessions=2**31, ttl_s=math.inf))


def _answer_type(sent: str, accept: str) -> str:
    """MessagePack if it is asked for, or if it was sent and nothing else is asked for."""
    if MSGPACK in accept.lower():
        return MSGPACK
    return MSGPACK if sent == MSGPACK and accept in ("", "*/*") else JSON


def _cut(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= _MAX_MESSAGE else clean[:_MAX_MESSAGE] + "..."
