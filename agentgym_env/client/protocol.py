"""The client side of the protocol, without input and output.

Each operation is a generator. It yields calls, is sent their answers in the same order, and returns
its result. The synchronous and the asynchronous client differ only in how they make the calls.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from agentgym_env.client.pool import Server, ServerPool
from agentgym_env.client.session_state import SessionState
from agentgym_env.client.transports import Answer, Call
from agentgym_env.errors import (
    AgentGymError,
    BadRequest,
    EnvironmentFault,
    EnvironmentLost,
    EpisodeOver,
    UnknownSplit,
    UnknownTask,
)
from agentgym_env.text_env import TaskSet
from agentgym_env.wire import (
    MAX_ITEMS,
    PROTOCOL_VERSION,
    ActionsReply,
    CloseReply,
    EnvCard,
    ErrorBody,
    ExpertReply,
    ResetReply,
    SessionRequest,
    StepReply,
    TaskList,
    WireError,
    decode,
    encode,
)

R = TypeVar("R")

_MAX_CALL_BYTES = 4 * 2**20  # well under a host's default limit of 16 MiB

_LOST = frozenset({"unknown_session", "shutting_down"})

_FAULT = frozenset({"environment_error", "deadline"})

logger = logging.getLogger(__name__)

Operation = Generator[list[tuple[Server[Any], Call]], list[Answer | EnvironmentLost], R]

ResetItem = tuple[SessionState, int | None, str | None, str | None]
"""Session, seed, task, split."""


def batch_calls(
    path: str,
    requests: Sequence[Any],
    max_items: int = MAX_ITEMS,
    *,
    repeats: bool = True,
    wait_s: float = 0.0,
) -> Iterator[tuple[Call, int]]:
    """The calls that carry `requests`, each with its number of requests."""
    held: list[bytes] = []
    size = 0
    for message in map(encode, requests):
        if held and (size + len(message) > _MAX_CALL_BYTES or len(held) == max_items):
            yield Call(path, b"[" + b",".join(held) + b"]", repeats, wait_s), len(held)
            held, size = [], 0
        held.append(message)
        size += len(message) + 1
    if held:
        yield Call(path, b"[" + b",".join(held) + b"]", repeats, wait_s), len(held)


def read_batch(
    answer: Answer | EnvironmentLost, reply: type[R], count: int, address: str
) -> list[R | AgentGymError]:
    """The `count` replies of one call, each a message or an exception."""
    if isinstance(answer, EnvironmentLost):
        return _for_each(answer, count)
    if not answer.body.startswith(b"["):
        return _for_each(_read_error(answer, address), count)
    replies = _decode(answer, list[reply], address)  # type: ignore[valid-type]
    if isinstance(replies, AgentGymError):
        return _for_each(replies, count)
    if len(replies) != count:
        text = f"{address} answered {len(replies)} items to {count}; check the address"
        return _for_each(EnvironmentLost(text, code="protocol"), count)
    errors = (getattr(message, "error", UNSET) for message in replies)
    return [
        message if error is UNSET else to_exception(error, address)
        for message, error in zip(replies, errors, strict=True)
    ]


def read_one(answer: Answer | EnvironmentLost, reply: type[R], address: str) -> R | AgentGymError:
    """The message of a GET, or an exception."""
    if isinstance(answer, EnvironmentLost):
        return answer
    if answer.status != 200:
        return _read_error(answer, address)
    return cast("R | AgentGymError", _decode(answer, reply, address))


def to_exception(error: WireError, address: str) -> AgentGymError:
    """The exception for a wire error."""
    if error.code in _LOST:
        return EnvironmentLost(f"{error.message} (at {address})", code=error.code)
    if error.code in _FAULT:
        return EnvironmentFault(f"{error.message} (at {address})", code=error.code)
    match error.code:
        case "unauthorized":
            return BadRequest(f"{error.message} (at {address})", code=error.code)
        case "unknown_task":
            return UnknownTask(error.message)
        case "unknown_split":
            return UnknownSplit(error.message)
        case "episode_over":
            return EpisodeOver(error.message)
    return BadRequest(error.message, code=error.code)


def card(pool: ServerPool[Any]) -> Operation[EnvCard]:
    """The environment's description; all servers that answer must send the same."""
    servers = pool.in_order()
    answers = yield [(server, Call("/v1/env")) for server in servers]
    first: tuple[EnvCard, str] | None = None
    failure: AgentGymError | None = None
    for server, answer in zip(servers, answers, strict=True):
        found = read_one(answer, EnvCard, server.address)
        if isinstance(found, EnvCard):
            server.max_items = found.max_items
        if isinstance(found, AgentGymError):
            failure = failure or found
            _note_loss(server, found)
        elif found.protocol != PROTOCOL_VERSION:
            raise BadRequest(
                f"{server.address} has version {found.protocol} of the protocol, this client "
                f"{PROTOCOL_VERSION}; install the same version on both sides"
            )
        elif first is None:
            first = (found, server.address)
        elif _served(found) != _served(first[0]):
            raise BadRequest(
                f"{first[1]} serves {first[0].env} and {server.address} serves {found.env}; the "
                "servers of one client must serve the same environment"
            )
    if first is None:
        raise failure or EnvironmentLost("no server answered")
    return first[0]


def tasks(pool: ServerPool[Any], split: str) -> Operation[TaskList]:
    """The tasks of one split, from the first server that answers."""
    failure: AgentGymError | None = None
    for server in pool.in_order():
        (answer,) = yield [(server, Call(f"/v1/tasks?split={quote(split, safe='')}"))]
        found = read_one(answer, TaskList, server.address)
        if not isinstance(found, AgentGymError):
            return found
        if not isinstance(found, EnvironmentLost):
            raise found
        failure = found
        _note_loss(server, found)
    raise failure or EnvironmentLost("no server answered")


def task_set(pool: ServerPool[Any]) -> Operation[TaskSet]:
    """Every split and selection with its tasks, their categories and aliases."""
    described = yield from card(pool)
    lists: dict[str, list[str]] = {}
    categories: dict[str, str] = {}
    aliases: dict[str, str] = {}
    for name in (*described.splits, *described.selections):
        found = yield from tasks(pool, name)
        lists[name] = found.tasks
        categories.update(found.categories)
        aliases.update(found.aliases)
    selections = {name: lists.pop(name) for name in described.selections}
    return TaskSet(lists, categories, aliases, selections)


def reset(items: Sequence[ResetItem]) -> Operation[list[ResetReply | AgentGymError]]:
    """Start an episode in each session."""
    asked = [(item[0], _or_refusal(item[0].begin_reset, *item[1:])) for item in items]
    replies = yield from _ask("/v1/reset", ResetReply, asked)
    for (session, request), reply in zip(asked, replies, strict=True):
        if not isinstance(request, AgentGymError):
            session.end_reset(reply)
    return replies


def step(items: Sequence[tuple[SessionState, str]]) -> Operation[list[StepReply | AgentGymError]]:
    """Take each session's next turn."""
    asked = [(session, _or_refusal(session.begin_step, action)) for session, action in items]
    replies = yield from _ask("/v1/step", StepReply, asked)
    for (session, request), reply in zip(asked, replies, strict=True):
        if not isinstance(request, AgentGymError):
            session.end_step(reply)
    return replies


def expert(sessions: Sequence[SessionState]) -> Operation[list[ExpertReply | AgentGymError]]:
    """The oracle's action for each session's next turn."""
    return _ask_within("/v1/expert", ExpertReply, sessions)


def actions(sessions: Sequence[SessionState]) -> Operation[list[ActionsReply | AgentGymError]]:
    """The available actions of each session's next turn."""
    return _ask_within("/v1/actions", ActionsReply, sessions)


def close(sessions: Iterable[SessionState]) -> Operation[None]:
    """Close sessions. One that cannot be reached expires on its server."""
    asked: list[tuple[SessionState, SessionRequest | AgentGymError]] = [
        (session, SessionRequest(session.name)) for session in sessions if session.close()
    ]
    replies = yield from _ask("/v1/close", CloseReply, asked)
    for (session, _), reply in zip(asked, replies, strict=True):
        if isinstance(reply, AgentGymError):
            logger.debug("closing a session at %s failed: %s", session.address, reply)


def post(
    path: str,
    reply: type[R],
    parcels: Sequence[tuple[Server[Any], Sequence[Any]]],
    *,
    repeats: bool = True,
    wait_s: float = 0.0,
) -> Operation[list[list[R | AgentGymError]]]:
    """One list of results for each list of requests.

    Items that a server rejected only because the other replies were long are sent again.
    """
    results: list[list[Any]] = [[None] * len(requests) for _, requests in parcels]
    waiting = [list(range(len(requests))) for _, requests in parcels]
    while any(waiting):
        calls: list[tuple[Server[Any], Call]] = []
        owners: list[tuple[int, list[int]]] = []  # parcel, the places of the call's items
        for index, (server, requests) in enumerate(parcels):
            places = iter(waiting[index])
            asked = [requests[place] for place in waiting[index]]
            for call, count in batch_calls(
                path, asked, server.max_items, repeats=repeats, wait_s=wait_s
            ):
                calls.append((server, call))
                owners.append((index, list(islice(places, count))))
            waiting[index] = []
        answers = yield calls
        for (server, _), (index, where), answer in zip(calls, owners, answers, strict=True):
            replies = read_batch(answer, reply, len(where), server.address)
            again = [_is_put_off(found) for found in replies]
            for place, found in zip(where, replies, strict=True):
                results[index][place] = found
            if not all(again):
                waiting[index] += [p for p, put_off in zip(where, again, strict=True) if put_off]
            if isinstance(answer, EnvironmentLost):
                server.back_off()
    return results


def _for_each(error: AgentGymError, count: int) -> list[Any]:
    # Each item gets its own: an exception that several tasks raise mixes up their tracebacks.
    return [copy.copy(error) for _ in range(count)]


def _read_error(answer: Answer, address: str) -> AgentGymError:
    failed = _decode(answer, ErrorBody, address)
    return to_exception(failed.error, address) if isinstance(failed, ErrorBody) else failed


def _decode(answer: Answer, kind: Any, address: str) -> Any:
    try:
        return decode(answer.body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return EnvironmentLost(
            f"{address} does not answer like an environment server (status {answer.status}: "
            f"{error}); check the address",
            code="protocol",
        )


def _served(found: EnvCard) -> tuple[Any, ...]:
    return found.env, found.splits, found.selections


def _ask_within(
    path: str, reply: type[R], sessions: Sequence[SessionState]
) -> Operation[list[R | AgentGymError]]:
    """Query each session's episode, without changing it."""
    asked = [(session, _or_refusal(session.begin_question)) for session in sessions]
    replies = yield from _ask(path, reply, asked)
    for session, found in zip(sessions, replies, strict=True):
        if isinstance(found, EnvironmentLost):
            session.lose(found)
    return replies


def _or_refusal(begin: Any, *arguments: Any) -> Any:
    """The session's request, or the exception with which the session rejects it."""
    try:
        return begin(*arguments)
    except AgentGymError as refusal:
        return refusal


def _ask(
    path: str, reply: type[R], asked: Sequence[tuple[SessionState, Any]]
) -> Operation[list[R | AgentGymError]]:
    """Send each session's request to its server; exceptions are passed through."""
    results: list[R | AgentGymError] = [
        request if isinstance(request, AgentGymError) else BadRequest("not sent")
        for _, request in asked
    ]
    places: dict[Server[Any], list[int]] = {}
    for place, (session, request) in enumerate(asked):
        if not isinstance(request, AgentGymError):
            places.setdefault(session.server, []).append(place)
    parcels = [(server, [asked[i][1] for i in where]) for server, where in places.items()]
    replies = yield from post(path, reply, parcels)
    for where, answered in zip(places.values(), replies, strict=True):
        for place, result in zip(where, answered, strict=True):
            results[place] = result
    return results


def _is_put_off(found: object) -> bool:
    return isinstance(found, BadRequest) and found.code == "too_large"


def _note_loss(server: Server[Any], failure: AgentGymError) -> None:
    if isinstance(failure, EnvironmentLost):
        server.back_off()
