"""The client side of the protocol, without input and output.

Each operation is a generator. It yields calls, is sent their answers in the same order, and returns
its result. The synchronous and the asynchronous client differ only in how they make the calls.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from agentgym_env.client import leases
from agentgym_env.client.directory import directory_of
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
from agentgym_env.spaces import clean_text
from agentgym_env.text_env import TaskSet, check_names, check_seed
from agentgym_env.wire import (
    MAX_ITEMS,
    PROTOCOL_VERSION,
    ActionsReply,
    CloseReply,
    EnvCard,
    ErrorBody,
    ExpertReply,
    ResetReply,
    ResetRequest,
    SessionRequest,
    StepReply,
    StepRequest,
    TaskList,
    WireError,
    decode,
    encode,
)

R = TypeVar("R")

_MAX_CALL_BYTES = 4 * 2**20  # well under a host's default limit of 16 MiB

_LOST = frozenset({"unknown_session", "shutting_down"})

_FAULT = frozenset({"environment_error", "deadline"})


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


class Addressed(Protocol):
    """The part of a transport that a pool needs."""

    address: str


T = TypeVar("T")

A = TypeVar("A", bound=Addressed)

_COOL_DOWN_S = 5.0


@dataclass(slots=True, eq=False)
class Server(Generic[T]):
    """One address and its state."""

    address: str
    transport: T
    open_sessions: int = 0
    max_items: int = MAX_ITEMS
    """Maximum items of one call, as its card states."""
    out_until: float = 0.0
    """Monotonic time until which no new sessions are opened here."""
    is_leaving: bool = False
    """Whether its directory lists it no longer: it gets no new sessions."""

    @property
    def is_out(self) -> bool:
        """Whether it failed recently."""
        return time.monotonic() < self.out_until

    def back_off(self) -> None:
        """Open no new sessions here for a while, since it did not answer."""
        self.out_until = time.monotonic() + _COOL_DOWN_S


class ServerPool(Generic[A]):
    """Opens sessions on the server with the fewest; a failed one is the last choice.

    `servers` may be the address of a directory. Its servers come and go: one that it no longer
    lists gets no new sessions, and leaves the pool when it has none left.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | A,
        connect: Callable[[str, str | None], A],
        token: str | None = None,
    ) -> None:
        """`connect` makes the transport of an address and a token; None is the client's own."""
        self._directory = directory_of(servers, "env")
        given = self._directory.await_addresses() if self._directory else servers

        def connected(address: str) -> A:
            # A directory's servers may have another token after its fleet was started anew.
            listed = self._directory.token if self._directory and token is None else token
            return connect(address, listed)

        self._connect = connected
        self.left: list[Server[A]] = []
        """Servers that left; their transports are still to be closed."""
        self.servers = [Server(each.address, each) for each in self._transports(given)]
        if not self.servers:
            raise BadRequest("a client needs at least one server address, got none")

    def in_order(self) -> list[Server[A]]:
        """All servers, the best choice first."""
        self.follow()
        usable = [server for server in self.servers if not server.is_leaving]
        return sorted(usable or self.servers, key=lambda s: (s.is_out, s.open_sessions))

    def spread(
        self, count: int, without: Collection[Server[A]] = ()
    ) -> list[tuple[Server[A], int]]:
        """How many of `count` new sessions go to which server; empty if none is left."""
        usable = [server for server in self.in_order() if server not in without]
        chosen = [server for server in usable if not server.is_out] or usable[:1]
        shares = dict.fromkeys(chosen, 0)
        for _ in range(count if chosen else 0):
            least = min(chosen, key=lambda server: server.open_sessions + shares[server])
            shares[least] += 1
        return [(server, share) for server, share in shares.items() if share]

    def follow(self) -> None:
        """Take in the directory's new servers; forget those that left and hold no sessions."""
        if self._directory is None:
            return
        addresses = self._directory.addresses()
        known = {server.address for server in self.servers}
        for address in addresses:
            if address not in known:
                self.servers.append(Server(address, self._connect(address)))
        for server in self.servers:
            server.is_leaving = server.address not in addresses
        stays = [s for s in self.servers if not s.is_leaving or s.open_sessions > 0]
        if stays:
            self.left += [server for server in self.servers if server not in stays]
            self.servers = stays

    def _transports(self, servers: str | Sequence[str] | A) -> list[A]:
        if isinstance(servers, str):
            servers = [servers]
        if isinstance(servers, bytes) or not (
            isinstance(servers, Sequence) or hasattr(servers, "send")
        ):
            raise BadRequest(f"a server is an address or a list of addresses, got {servers!r}")
        return [self._connect(a) for a in servers] if isinstance(servers, Sequence) else [servers]


class SessionState:
    """Numbers the episodes and turns and rejects invalid calls; does no input or output.

    `begin_...` returns the request to send, `end_...` receives its result. A call that was begun
    and never ended leaves the episode unknown, so the session is lost: continuing might pair an
    action with the answer to another.
    """

    def __init__(self, name: str, server: Server[Any]) -> None:
        self.name = name
        self.server = server
        self._resets = 0
        self._episode = 0
        self._turn = 0
        self._over: str | None = "no episode was started"
        self._under_way = False
        self._lost: EnvironmentLost | None = None
        self._closed = False
        self._lease = leases.lease(self, name, server.transport)
        server.open_sessions += 1

    @property
    def address(self) -> str:
        """The session's server."""
        return self.server.address

    @property
    def is_lost(self) -> bool:
        """Whether the session can no longer be used."""
        return self._closed or self._lost is not None or self._under_way

    def begin_reset(self, seed: int | None, task: str | None, split: str | None) -> ResetRequest:
        """The request for a new episode."""
        check_names(task, split)
        check_seed(seed)
        self._begin()
        self._resets += 1
        return ResetRequest(
            self.name,
            None if seed is None else seed.__index__(),
            None if task is None else clean_text(task),
            None if split is None else clean_text(split),
            self._resets,
        )

    def end_reset(self, reply: ResetReply | AgentGymError) -> None:
        """Receive the result of a reset. A rejected reset leaves the old episode unchanged."""
        self._end(reply)
        if isinstance(reply, ResetReply):
            self._episode, self._turn, self._over = self._resets, 0, None

    def begin_step(self, action: str) -> StepRequest:
        """The request for the next turn."""
        if not isinstance(action, str):
            raise BadRequest(f"an action is a str, got {type(action).__name__}")
        self._check_episode("call reset() before step()")
        self._begin()
        return StepRequest(self.name, self._turn + 1, clean_text(action), self._episode)

    def end_step(self, reply: StepReply | AgentGymError) -> None:
        """Receive the result of a step."""
        self._end(reply)
        if isinstance(reply, StepReply):
            self._turn = reply.turn
            if reply.terminated or reply.truncated:
                self._over = "the episode has ended"

    def begin_question(self) -> SessionRequest:
        """The request for the oracle's action or the available actions, which changes nothing."""
        self._check_episode("call reset() first")
        self._check_usable()
        return SessionRequest(self.name)

    def close(self) -> bool:
        """Close the session; whether to send this to the server."""
        if self._closed:
            return False
        self._closed = True
        self._release()
        if self._lost is None:
            self.server.open_sessions -= 1
        return self._lost is None

    def lose(self, failure: EnvironmentLost) -> None:
        """Mark the session as lost."""
        if self._lost is None and not self._closed:
            self.server.open_sessions -= 1
        self._lost = self._lost or failure
        self._release()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.is_held = False

    def _begin(self) -> None:
        self._check_usable()
        self._under_way = True

    def _end(self, reply: object) -> None:
        self._under_way = False
        if isinstance(reply, EnvironmentLost):
            self.lose(reply)
        elif isinstance(reply, EnvironmentFault):
            self._over = "the episode ended with a failure of the environment"

    def _check_usable(self) -> None:
        if self._closed:
            raise BadRequest("the session is closed; open another")
        if self._lost is not None:
            raise EnvironmentLost(str(self._lost), self._lost.code)
        if self._under_way:
            raise EnvironmentLost(
                "an earlier call on this session was not answered, so its episode is unknown; "
                "open another session",
                code="interrupted",
            )

    def _check_episode(self, remedy: str) -> None:
        self._check_usable()
        if self._over is not None:
            raise EpisodeOver(f"{self._over}; {remedy}")


logger = logging.getLogger(__name__)

Operation = Generator[list[tuple[Server[Any], Call]], list[Answer | EnvironmentLost], R]

ResetItem = tuple[SessionState, int | None, str | None, str | None]
"""Session, seed, task, split."""


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


def _served(found: EnvCard) -> tuple[Any, ...]:
    return found.env, found.splits, found.selections


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


def _is_put_off(found: object) -> bool:
    return isinstance(found, BadRequest) and found.code == "too_large"


def _note_loss(server: Server[Any], failure: AgentGymError) -> None:
    if isinstance(failure, EnvironmentLost):
        server.back_off()
