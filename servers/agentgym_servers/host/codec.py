"""Decodes requests and encodes replies; knows nothing about where the sessions are.

A call is begun, its batch is answered wherever the sessions live, and the answer is written. The
HTTP application and the in-process transport share this, so they agree to the byte.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from itertools import islice
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET

from agentgym_env.errors import (
    BadRequest,
    EnvironmentFault,
    EpisodeOver,
    UnknownSplit,
    UnknownTask,
)
from agentgym_env.spaces import clean_text
from agentgym_env.wire import (
    JSON,
    MAX_ITEMS,
    MSGPACK,
    STATUS,
    EnvCard,
    ErrorBody,
    TaskList,
    WireError,
    decode,
    encode,
)
from agentgym_servers.host import routes
from agentgym_servers.host.logs import event, where
from agentgym_servers.host.metrics import Figures, count, page
from agentgym_servers.host.request_guard import check_content_type, media_type
from agentgym_servers.host.routes import openapi_document

logger = logging.getLogger(__name__)

Answer = tuple[int, str, bytes]
"""Status, content type, body."""

_POSTS = {route.path: route for route in routes.ROUTES if route.takes is not None}

_KNOWN = frozenset((route.method, route.path) for route in routes.ROUTES)

_MAX_MESSAGE = 500

_TOKEN_REQUIRED = (
    "the server requires a token: pass token=, --token-file or AGENTGYM_TOKEN; in HTTP, send "
    "Authorization: Bearer TOKEN"
)

_MAX_REPLY_BYTES: Final = 32 * 2**20
"""Bytes of one item's reply."""

_TOKEN_REJECTED = "the server rejected this token; use the token that the server was started with"

_STRING = rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)'
_UP_TO_A_BRACE = re.compile(rb'(?:[^"{]++|' + _STRING + rb")*+(\{|\Z)", re.DOTALL)
"""Everything up to the next brace outside of strings, or to the end. It matches wherever it is
tried, also in strings that do not end, so that a scan takes time in proportion to the body."""
_UP_TO_A_VALUE = re.compile(rb'(?:[^"{\[,]++|' + _STRING + rb")*+([{\[,]|\Z)", re.DOTALL)
"""The same, up to what a further value of JSON needs."""


class CallBatch(msgspec.Struct, frozen=True):
    """A request for the session store."""

    route: routes.Route
    requests: list[Any]
    wanted: str
    """Content type of the answer."""


class Scrape(msgspec.Struct, frozen=True):
    """A call for what was counted."""

    path: str


class SessionStore(Protocol):
    """The part of the session store that the codec needs."""

    def card(self) -> EnvCard:
        """What is served."""
        ...

    def task_list(self, split: str) -> TaskList:
        """The tasks of one split; raises `UnknownSplit`."""
        ...

    def unsendable(self, reply: Any, error: Exception) -> Any:
        """Replace a reply that is not serializable."""
        ...


class Codec:
    """Decodes requests, encodes responses, checks tokens and sizes, counts."""

    def __init__(
        self,
        session_store: SessionStore,
        *,
        token: str | None = None,
        max_body_bytes: int = 16 * 2**20,
        max_items: int = MAX_ITEMS,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.max_items = max_items
        self.decoding = asyncio.Lock()
        """Held while a large body is decoded."""
        self.figures = Figures()
        """Calls, items and errors; the session store counts the rest."""
        self.session_store = session_store
        """The session store."""
        self._token = token

    def begin(
        self,
        method: str,
        path: str,
        query: str = "",
        body: bytes = b"",
        content_type: str = "",
        accept: str = "",
        authorization: str = "",
    ) -> Answer | CallBatch | Scrape:
        """Read one call. It never raises: whatever comes in is answered, or can be."""
        sent = media_type(content_type)
        wanted = _answer_type(sent, accept)
        # Unknown paths share a name, or a scan would fill the memory.
        count(self.figures.requests, path if (method, path) in _KNOWN else "unknown")
        error = self.unauthorized(path, authorization) or self.too_large(len(body))
        if error is not None:
            return self.fail(error, wanted)
        if method == "POST" and path in _POSTS:
            return self._read(_POSTS[path], body, sent, wanted)
        if method == "GET" and path in (routes.METRICS.path, routes.HEALTH.path):
            return Scrape(path)
        if path not in routes.METHOD_OF:
            return self.fail(WireError("unknown_route", f"there is no {_cut(path)}"), wanted)
        if method != routes.METHOD_OF[path]:
            text = f"{path} takes {routes.METHOD_OF[path]}, not {_cut(method)}"
            return self.fail(WireError("wrong_method", text), wanted)
        return self._get(path, query, wanted)

    def finish(self, batch: CallBatch, replies: list[Any]) -> Answer:
        """Write a batch's answer: 200 unless every item failed, then the first item's status."""
        count(self.figures.items, batch.route.path, len(replies))
        replies, body = encode_replies(replies, batch.wanted, self.session_store)
        can_fail = batch.route not in (routes.CLOSE, routes.RENEW)
        failures = [r.error for r in replies if r.error is not UNSET] if can_fail else []
        for failure in failures:
            count(self.figures.errors, failure.code)
        all_failed = bool(failures) and len(failures) == len(replies)
        return (STATUS[failures[0].code] if all_failed else 200), batch.wanted, body

    def show(self, scrape: Scrape, figures: Figures) -> Answer:
        """Write the answer to a scrape; `figures` are the whole server's."""
        if scrape.path == routes.METRICS.path:
            return 200, "text/plain; version=0.0.4", page(figures).encode()
        health = {
            "status": "ok", "env": self.session_store.card().env, "sessions": figures.sessions,
        }  # fmt: skip
        return 200, JSON, encode(health)

    def unauthorized(self, path: str, authorization: str) -> WireError | None:
        """Why a request is rejected before it is read, or None."""
        if self._token is None or path == routes.HEALTH.path:
            return None
        scheme, _, given = authorization.strip().partition(" ")
        if scheme.lower() != "bearer":
            return WireError("unauthorized", _TOKEN_REQUIRED)
        # Header bytes that are not text must compare unequal, not raise.
        token = given.strip().encode("utf-8", "surrogatepass")
        if hmac.compare_digest(token, self._token.encode()):
            return None
        return WireError("unauthorized", _TOKEN_REJECTED)

    def too_large(self, body_bytes: int) -> WireError | None:
        """Why a body of this size is not read, or None."""
        if body_bytes <= self.max_body_bytes:
            return None
        limit = self.max_body_bytes
        return WireError(
            "too_large", f"the body is above the limit of {limit} bytes; send smaller batches"
        )

    def _too_many(self, body: bytes, sent: str) -> WireError | None:
        """Why a body of so many items is not decoded, or None."""
        if _count_items(body, sent, self.max_items) <= self.max_items:
            return None
        return WireError(
            "too_many_items",
            f"the call has more than {self.max_items} items, which is the limit; send several "
            "calls",
        )

    def fail(self, error: WireError, content_type: str = JSON) -> Answer:
        """The answer to a call that failed as a whole."""
        count(self.figures.errors, error.code)
        return STATUS[error.code], content_type, encode(ErrorBody(error), content_type)

    def _read(self, route: routes.Route, body: bytes, sent: str, wanted: str) -> Answer | CallBatch:
        error = check_content_type(route.method, body, sent) or self._too_many(body, sent)
        if error is not None:
            return self.fail(error, wanted)
        try:
            return CallBatch(route, decode(body, route.takes, sent), wanted)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = f"the body is not what {route.path} takes: {_cut(str(error))}"
            return self.fail(WireError("bad_request", text), wanted)

    def _get(self, path: str, query: str, wanted: str) -> Answer:
        if path == routes.ENV.path:
            card = msgspec.structs.replace(self.session_store.card(), max_items=self.max_items)
            return 200, wanted, encode(card, wanted)
        if path == routes.TASKS.path:
            return self._get_tasks(query, wanted)
        return 200, JSON, encode(openapi_document(self.session_store.card()))

    def _get_tasks(self, query: str, wanted: str) -> Answer:
        try:
            splits = parse_qs(query, max_num_fields=8).get("split", [])
        except ValueError:
            splits = []
        if len(splits) != 1:
            card = self.session_store.card()
            names = ", ".join((*card.splits, *card.selections))
            return self.fail(
                WireError("bad_request", f"name one split: /v1/tasks?split=NAME, of {names}"),
                wanted,
            )
        try:
            return 200, wanted, encode(self.session_store.task_list(splits[0]), wanted)
        except UnknownSplit as error:
            return self.fail(WireError("unknown_split", _cut(str(error))), wanted)


def encode_replies(
    replies: list[Any], wanted: str, session_store: SessionStore
) -> tuple[list[Any], bytes]:
    """The replies and their bytes; one that is not serializable becomes an environment error."""
    try:
        body = encode(replies, wanted)
        if len(body) <= _MAX_REPLY_BYTES:
            return replies, body
        del body
    except Exception as error:
        # One world's info cannot be written; the others' replies must still go out.
        logger.debug("a batch of %d cannot be written: %s", len(replies), error)
    sendable = [_sendable(reply, wanted, session_store) for reply in replies]
    return sendable, encode(sendable, wanted)


def _sendable(reply: Any, wanted: str, session_store: SessionStore) -> Any:
    try:
        size = len(encode(reply, wanted))
        if size > _MAX_REPLY_BYTES:
            raise EnvironmentFault(
                f"the environment's reply has {size} bytes; the limit is {_MAX_REPLY_BYTES}: give "
                "shorter observations"
            )
    except Exception as error:
        return session_store.unsendable(reply, error)
    return reply


def _count_items(body: bytes, sent: str, limit: int) -> int:
    """The items of a batch, or `limit` + 1 where there are more, without decoding it.

    Every item of every route is an object without objects in it. Bytes that are no batch may have
    any count.
    """
    if sent == MSGPACK:
        # An array's first byte is its kind, the length follows; see the MessagePack specification.
        kind = body[:1]
        size = {b"\xdc": 2, b"\xdd": 4}.get(kind, 0)
        return int.from_bytes(body[1 : 1 + size]) if size else 0
    items = body.count(b"{")
    if items <= limit:
        return items
    # The text of actions may have braces too.
    return _count_matches(_UP_TO_A_BRACE, body, limit)


def has_more_values(body: bytes, limit: int) -> bool:
    """Whether a body of JSON has more than about `limit` values, without decoding it.

    A decoded value takes many times the memory of its text.
    """
    if sum(map(body.count, (b"{", b"[", b","))) <= limit:
        return False
    return _count_matches(_UP_TO_A_VALUE, body, limit) > limit


def _count_matches(pattern: re.Pattern[bytes], body: bytes, limit: int) -> int:
    """The matches with a first group; at most `limit` + 1."""
    found = (match for match in pattern.finditer(body) if match[1])
    return sum(1 for _ in islice(found, limit + 1))


def _answer_type(sent: str, accept: str) -> str:
    """MessagePack if it is accepted, or if it was sent and nothing else is accepted."""
    if MSGPACK in accept.lower():
        return MSGPACK
    return MSGPACK if sent == MSGPACK and accept in ("", "*/*") else JSON


def _cut(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= _MAX_MESSAGE else clean[:_MAX_MESSAGE] + "..."


_MAX_MESSAGE_FAULTS = 2000


def refusal(name: str, error: Exception) -> WireError | None:
    """The error of a request that the world refuses as its contract says, or None."""
    message = cut(clean_text(str(error)))
    match error:
        case UnknownTask():
            return WireError("unknown_task", message, name)
        case UnknownSplit():
            return WireError("unknown_split", message, name)
        case EpisodeOver():
            return WireError("episode_over", message, name)
        case BadRequest():
            return WireError(error.code if error.code in STATUS else "bad_request", message, name)
    return None


def fault(name: str | None, error: Exception, *, log_message: bool) -> WireError:
    """The error of a world whose own code failed; where it did is logged.

    The exception's message is logged only on request: it may quote an action.
    """
    fields = {"message": str(error)} if log_message else {}
    event(
        logger, logging.ERROR, "environment_error",
        session=name, **fields, where=where(error),
    )  # fmt: skip
    if isinstance(error, EnvironmentFault):
        code = error.code if error.code in STATUS else "environment_error"
        return WireError(code, cut(clean_text(str(error))), name)
    text = cut(clean_text(f"{type(error).__name__}: {error}"))
    return WireError("environment_error", text, name)


def unknown_session(name: str) -> WireError:
    """The error of a session that is not there."""
    text = "session closed, expired or unknown; open a new one"
    return WireError("unknown_session", text, cut(name))


def cut(text: str) -> str:
    """A text, shortened for an error message."""
    return text if len(text) <= _MAX_MESSAGE_FAULTS else text[:_MAX_MESSAGE_FAULTS] + "..."
