"""What a client does with its servers, without the input and output.

Each operation is a generator. It yields the calls to be made, is sent their answers in the same
order, and returns its result. The synchronous and the asynchronous client differ only in how
they make the calls.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from agentgym_env.errors import AgentGymError, BadRequest, EnvironmentLost
from agentgym_env.exchange import batch_calls, read_batch, read_one
from agentgym_env.pool import Server, ServerPool
from agentgym_env.session_state import SessionState
from agentgym_env.task_set import TaskSet
from agentgym_env.transports import Answer, Call
from agentgym_env.wire import (
    PROTOCOL_VERSION,
    ActionsReply,
    CloseReply,
    CreateReply,
    CreateRequest,
    EnvCard,
    ExpertReply,
    ResetReply,
    SessionRequest,
    StepReply,
    TaskList,
)

logger = logging.getLogger(__name__)

R = TypeVar("R")
Operation = Generator[list[tuple[Server[Any], Call]], list[Answer | EnvironmentLost], R]

ResetItem = tuple[SessionState, int | None, str | None, str | None]
"""Session, seed, task, split."""


def card(pool: ServerPool[Any]) -> Operation[EnvCard]:
    """What the servers serve; they must serve the same, and one of them must answer."""
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
                f"{server.address} speaks version {found.protocol} of the protocol, this client "
                f"{PROTOCOL_VERSION}; install the same version on both sides"
            )
        elif first is None:
            first = (found, server.address)
        elif (found.env, found.splits) != (first[0].env, first[0].splits):
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
    """Every split with its tasks and categories."""
    described = yield from card(pool)
    splits: dict[str, list[str]] = {}
    categories: dict[str, str] = {}
    for name in described.splits:
        found = yield from tasks(pool, name)
        splits[name] = found.tasks
        categories.update(found.categories)
    return TaskSet(splits, categories)


def open_sessions(pool: ServerPool[Any], count: int) -> Operation[list[SessionState]]:
    """Open `count` sessions where there is room; all of them or, raising, none."""
    opened: list[SessionState] = []
    unusable: set[Server[Any]] = set()
    failure: AgentGymError | None = None
    while len(opened) < count:
        shares = pool.spread(count - len(opened), without=unusable)
        if not shares:
            yield from close(opened)
            raise failure or EnvironmentLost("no server is left")
        parcels = [(server, [CreateRequest()] * share) for server, share in shares]
        replies = yield from _post("/v1/sessions", CreateReply, parcels)
        for (server, _), created in zip(parcels, replies, strict=True):
            for reply in created:
                if isinstance(reply, AgentGymError):
                    failure = reply
                    unusable.add(server)
                    _note_loss(server, reply)
                else:
                    opened.append(SessionState(reply.session, server))
    return opened


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
    """What can be done in each session's next turn."""
    return _ask_within("/v1/actions", ActionsReply, sessions)


def close(sessions: Iterable[SessionState]) -> Operation[None]:
    """End sessions. One whose server is gone is let go: the server's time limit ends it."""
    asked: list[tuple[SessionState, SessionRequest | AgentGymError]] = [
        (session, SessionRequest(session.name)) for session in sessions if session.close()
    ]
    replies = yield from _ask("/v1/close", CloseReply, asked)
    for (session, _), reply in zip(asked, replies, strict=True):
        if isinstance(reply, AgentGymError):
            logger.debug("closing a session at %s failed: %s", session.address, reply)


def _ask_within(
    path: str, reply: type[R], sessions: Sequence[SessionState]
) -> Operation[list[R | AgentGymError]]:
    """Ask about each session's episode, which stays as it is."""
    asked = [(session, _or_refusal(session.begin_question)) for session in sessions]
    replies = yield from _ask(path, reply, asked)
    for session, found in zip(sessions, replies, strict=True):
        if isinstance(found, EnvironmentLost):
            session.lose(found)
    return replies


def _or_refusal(begin: Any, *arguments: Any) -> Any:
    """The session's request, or the exception by which the session itself refuses."""
    try:
        return begin(*arguments)
    except AgentGymError as refusal:
        return refusal


def _ask(
    path: str, reply: type[R], asked: Sequence[tuple[SessionState, Any]]
) -> Operation[list[R | AgentGymError]]:
    """Send each session's request to its server; what is an exception already is not sent."""
    results: list[R | AgentGymError] = [
        request if isinstance(request, AgentGymError) else BadRequest("not sent")
        for _, request in asked
    ]
    places: dict[Server[Any], list[int]] = {}
    for place, (session, request) in enumerate(asked):
        if not isinstance(request, AgentGymError):
            places.setdefault(session.server, []).append(place)
    parcels = [(server, [asked[i][1] for i in where]) for server, where in places.items()]
    replies = yield from _post(path, reply, parcels)
    for where, answered in zip(places.values(), replies, strict=True):
        for place, result in zip(where, answered, strict=True):
            results[place] = result
    return results


def _post(
    path: str, reply: type[R], parcels: Sequence[tuple[Server[Any], Sequence[Any]]]
) -> Operation[list[list[R | AgentGymError]]]:
    """One list of results for each parcel of requests."""
    results: list[list[R | AgentGymError]] = [[] for _ in parcels]
    calls: list[tuple[Server[Any], Call]] = []
    owners: list[tuple[int, int]] = []  # parcel, how many items the call holds
    for index, (server, requests) in enumerate(parcels):
        for call, count in batch_calls(path, requests, server.max_items):
            calls.append((server, call))
            owners.append((index, count))
    if not calls:
        return results
    answers = yield calls
    for (server, _), (index, count), answer in zip(calls, owners, answers, strict=True):
        results[index].extend(read_batch(answer, reply, count, server.address))
        if isinstance(answer, EnvironmentLost):
            server.rest()
    return results


def _note_loss(server: Server[Any], failure: AgentGymError) -> None:
    if isinstance(failure, EnvironmentLost):
        server.rest()
