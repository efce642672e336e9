"""Opening sessions: which server takes them, when to try again, and what to close in the end."""

from __future__ import annotations

import copy
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

from agentgym_env.client.pool import Server, ServerPool
from agentgym_env.client.protocol import Operation, close, post
from agentgym_env.client.session_state import SessionState
from agentgym_env.client.transports import pause_before_attempt
from agentgym_env.errors import AgentGymError, BadRequest, EnvironmentLost
from agentgym_env.wire import CloseReply, CreateReply, CreateRequest, SessionRequest

_UNCERTAIN = frozenset({"unanswered", "timeout"})
"""Codes of calls that the server may have received, and carried out."""

_Parcels = list[tuple[Server[Any], list[CreateRequest]]]


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of each call of a client; raises `BadRequest` if they are none."""

    timeout_s: float = 60.0
    retries: int = 3

    def __post_init__(self) -> None:
        seconds, retries = self.timeout_s, self.retries
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise BadRequest(f"timeout_s is a number of seconds above 0, got {seconds!r}")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise BadRequest(f"retries is a whole number, at least 0, got {retries!r}")


def open_sessions(
    pool: ServerPool[Any], count: int, limits: CallLimits
) -> Operation[list[SessionState]]:
    """Open `count` sessions; raises, and leaves none open, if not all can be opened."""
    found = yield from open_each(pool, count, limits)
    failures = [one for one in found if isinstance(one, AgentGymError)]
    if failures:
        yield from close(one for one in found if isinstance(one, SessionState))
        raise failures[0]
    return cast("list[SessionState]", found)


def open_each(
    pool: ServerPool[Any], count: int, limits: CallLimits
) -> Operation[list[SessionState | AgentGymError]]:
    """Open `count` sessions on servers with free places; those that fail are exceptions.

    If no other server takes them, it waits for those that restart, for at most `timeout_s`.
    """
    placement = _Placement(pool, count, limits)
    try:
        while parcels := placement.choose():
            replies = yield from post(
                "/v1/sessions", CreateReply, parcels, repeats=False, wait_s=placement.wait_s
            )
            placement.receive(replies)
    except GeneratorExit:
        raise
    except BaseException:
        # Interrupted or cancelled: nobody will use what was opened.
        yield from close(placement.opened)
        yield from _close_by_key([*placement.uncertain, *placement.asked])
        raise
    yield from _close_by_key(placement.uncertain)
    missing = count - len(placement.opened)
    # Each item gets its own: an exception that several tasks raise mixes up their tracebacks.
    return [*placement.opened, *(copy.copy(placement.failure) for _ in range(missing))]


class _Placement:
    """Which sessions are open, and which servers may take the others."""

    def __init__(self, pool: ServerPool[Any], count: int, limits: CallLimits) -> None:
        self.opened: list[SessionState] = []
        self.failure: AgentGymError = EnvironmentLost("no server is left")
        self.asked: _Parcels = []
        """The calls under way."""
        self.uncertain: _Parcels = []
        """Sessions that a server may have opened although it did not answer."""
        self.wait_s = 0.0
        """Seconds to wait before the calls are made."""
        self._pool = pool
        self._count = count
        self._retries = limits.retries
        self._until = time.monotonic() + limits.timeout_s
        self._unusable: set[Server[Any]] = set()
        self._usable_later: set[Server[Any]] = set()
        self._unanswered: Counter[Server[Any]] = Counter()
        self._waits = 0

    def choose(self) -> _Parcels:
        """The next calls; none if every session is open, or no server takes more."""
        missing = self._count - len(self.opened)
        self.wait_s = 0.0
        shares = self._pool.spread(missing, without=self._unusable)
        if missing and not shares and self._can_wait():
            shares = self._pool.spread(missing, without=self._unusable)
        self.asked = [
            (server, [CreateRequest(key=secrets.token_urlsafe(18)) for _ in range(share)])
            for server, share in shares
        ]
        return self.asked

    def receive(self, replies: list[list[CreateReply | AgentGymError]]) -> None:
        """Take the replies to the calls."""
        asked, self.asked = self.asked, []
        for (server, requests), created in zip(asked, replies, strict=True):
            for reply in created:
                if isinstance(reply, CreateReply):
                    self.opened.append(SessionState(reply.session, server))
            codes = {self._note(server, r) for r in created if isinstance(r, AgentGymError)}
            if codes & _UNCERTAIN:
                # Of several calls to one server, some may have been answered.
                lost = [r for r, c in zip(requests, created, strict=True) if _is_uncertain(c)]
                self.uncertain.append((server, lost))
            if "unanswered" in codes:
                self._unanswered[server] += 1
            if "shutting_down" in codes or (
                "unanswered" in codes and self._unanswered[server] <= self._retries
            ):
                self._usable_later.add(server)

    def _note(self, server: Server[Any], failure: AgentGymError) -> str:
        """Ask a server that failed no further; the code of its failure."""
        self.failure = failure
        self._unusable.add(server)
        if isinstance(failure, EnvironmentLost):
            server.back_off()
        return str(getattr(failure, "code", ""))

    def _can_wait(self) -> bool:
        """Whether servers that restart are asked again, after `wait_s`."""
        pause_s = pause_before_attempt(self._waits + 1)
        in_time = time.monotonic() + pause_s < self._until
        if not (self._usable_later and self._retries and in_time):
            return False
        self._waits += 1
        self.wait_s = pause_s
        self._unusable -= self._usable_later
        self._usable_later = set()
        return True


def _is_uncertain(reply: CreateReply | AgentGymError) -> bool:
    return isinstance(reply, EnvironmentLost) and reply.code in _UNCERTAIN


def _close_by_key(parcels: _Parcels) -> Operation[None]:
    """Close the sessions that were opened by these requests, as far as they were."""
    asked: dict[Server[Any], list[SessionRequest]] = {}
    for server, requests in parcels:
        keys = [SessionRequest(request.key) for request in requests if request.key]
        asked.setdefault(server, []).extend(keys)
    yield from post("/v1/close", CloseReply, list(asked.items()), repeats=False)
