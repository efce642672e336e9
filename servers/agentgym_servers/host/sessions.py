"""The session table: many episodes of one environment, by name; knows nothing about transports.

Every operation takes and returns a list of wire messages. An item that fails carries its error
and leaves the others alone. A world that raises loses its episode, never its session.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_env.spaces import TextSpace, clean_text
from agentgym_env.text_env import TextEnv
from agentgym_env.wire import (
    MAX_SEED,
    ActionsReply,
    CloseReply,
    CreateReply,
    CreateRequest,
    EnvCard,
    ExpertReply,
    RenewReply,
    RenewRequest,
    ResetReply,
    ResetRequest,
    SessionRequest,
    StepReply,
    StepRequest,
    TaskList,
    WireError,
)
from agentgym_servers.host import routes
from agentgym_servers.host.codec import cut, fault, refusal, unknown_session
from agentgym_servers.host.logs import event
from agentgym_servers.host.metrics import Figures, count
from agentgym_servers.host.time_limit import TimeLimit

logger = logging.getLogger(__name__)

Reply = ResetReply | StepReply | ExpertReply | ActionsReply

A = TypeVar("A", ExpertReply, ActionsReply)

_NEVER: Final = 4096
"""How many keys are remembered that were closed before they were opened."""

_IDLE_S: Final = 300.0
"""Seconds without a call after which a full table may end a session for a new one."""

_LONGEST_NAP_S: Final = 12.0

_BLOCKED_S: Final = 3.0
"""Seconds awake for which a longer time between two looks at the leases counts: the process was
blocked, and renewals waited."""

_REAP_EVERY_S = (1.0, 10.0)


@dataclass(slots=True)
class Session:
    """One environment and the state of its episode."""

    env: TextEnv
    used: float
    """When it was last spoken to, by the table's clock."""
    turn: int = -1
    """The last turn answered; 0 after a reset, -1 before the first one."""
    over: bool = True
    episode: int = 0
    """The number of the episode; 0 before the first reset."""
    reply: StepReply | ResetReply | None = None
    """The answer to the last turn or reset, for a client that asks again."""
    asked: object = None
    """What `reply` answers: a reset's arguments, or the hash of an action, which may be long."""
    task: str | None = None
    """The task of the episode."""
    lease_s: float | None = None
    """Seconds after which it ends without a renewal; None without a lease."""
    renewed: float = 0.0
    """When its lease was last renewed, by the table's time awake."""


def refused_turn(session: Session, request: StepRequest) -> StepReply:
    """The reply to an invalid turn."""
    if session.turn < 0:
        code, text = "episode_over", "no episode was started; reset the session before stepping it"
    elif not _is_of_episode(session, request):
        code = "stale_turn"
        text = (
            f"turn {request.turn} is of episode {request.episode}; the session's is "
            f"{session.episode}"
        )
    elif request.turn == session.turn > 0:
        code = "stale_turn"
        text = (
            f"turn {request.turn} was taken with another action; the next one is {session.turn + 1}"
        )
    elif request.turn != session.turn + 1:
        code = "stale_turn"
        text = f"turn {request.turn} cannot be taken: the next one is {session.turn + 1}"
    else:
        code, text = "episode_over", "the episode has ended; reset the session before stepping it"
    error = WireError(code, text, request.session)
    return StepReply(request.session, request.turn, error=error)


class SessionTable:
    """Creates, resets, steps and ends sessions.

    A session ends after `ttl_s` seconds without a call, and when its lease runs out: then its
    client is gone. A full table ends the session without a lease that was idle longest, after 5
    minutes. Not safe for threads: its owner calls it from one at a time.
    """

    def __init__(
        self,
        make_env: Callable[[], TextEnv],
        *,
        env_id: str,
        max_sessions: int = TextEnv.max_sessions,
        server_sessions: int | None = None,
        ttl_s: float = 3600.0,
        version: str = "",
        name_prefix: str = "",
        log_actions: bool = False,
        step_timeout_s: float = TextEnv.step_timeout_s,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A call of a world is limited to `step_timeout_s` once `time_limit` is started."""
        self.time_limit = TimeLimit(step_timeout_s)
        if max_sessions < 1:
            raise BadRequest(f"max_sessions is at least 1, got {max_sessions}")
        if not ttl_s > 0:
            raise BadRequest(f"the sessions' time to live is above 0 seconds, got {ttl_s}")
        self._make_env = make_env
        self._env_id = env_id
        self._max_sessions = max_sessions
        self._server_sessions = max_sessions if server_sessions is None else server_sessions
        self._ttl_s = ttl_s
        self._version = version
        self._never: dict[str, None] = {}
        """Keys that must not be opened any more, the oldest first."""
        self._name_prefix = name_prefix
        self._log_actions = log_actions
        self._log_steps = log_actions or logger.isEnabledFor(logging.DEBUG)
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._reaped_at = clock()
        self._awake_s = 0.0
        """Seconds for which it was there to take renewals: a long step of a world is left out."""
        self._figures = Figures()
        self._answers: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
            routes.SESSIONS.path: self.create,
            routes.RESET.path: self.reset,
            routes.STEP.path: self.step,
            routes.CLOSE.path: self.close,
            routes.RENEW.path: self.renew,
            routes.EXPERT.path: self.expert,
            routes.ACTIONS.path: self.actions,
        }
        # One environment tells what is served; the first session takes it over.
        self._spare: TextEnv | None = make_env()
        self._card = self._describe(self._spare)
        self._tasks = self._spare.tasks

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def ttl_s(self) -> float:
        """Seconds until an idle session expires."""
        return self._ttl_s

    def figures(self) -> Figures:
        """What was counted so far."""
        self.reap()
        return msgspec.structs.replace(self._figures, sessions=len(self))

    def answer(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch of the route at `path`."""
        return self._answers[path](requests)

    def card(self) -> EnvCard:
        """What is served here."""
        return self._card

    def task_list(self, split: str) -> TaskList:
        """The tasks of one split or selection; raises `UnknownSplit`."""
        ids = self._tasks.split(split)
        categories = {task: self._tasks.category(task) for task in ids}
        known = set(ids)
        return TaskList(
            split,
            list(ids),
            {task: category for task, category in categories.items() if category is not None},
            {alias: task for alias, task in self._tasks.aliases.items() if task in known},
        )

    def create(self, requests: Sequence[CreateRequest]) -> list[CreateReply]:
        """Open sessions, up to the limit."""
        if len(self._sessions) + len(requests) > self._max_sessions:
            self.reap()
        return [self._create(request) for request in requests]

    def reset(self, requests: Sequence[ResetRequest]) -> list[ResetReply]:
        """Start an episode in each session, in order."""
        return [self._reset(request) for request in requests]

    def step(self, requests: Sequence[StepRequest]) -> list[StepReply]:
        """Take each session's next turn, in order; a repeated turn gets its stored reply."""
        # The hot path: what a step costs beside the world is here (benchmarks/README.md).
        now = self._clock()
        oldest_allowed = now - self._ttl_s
        sessions, clock, limited = self._sessions, time.perf_counter, self.time_limit.call
        replies: list[StepReply] = []
        taken: list[float] = []
        for request in requests:
            session = sessions.get(request.session)
            if (
                session is None
                or request.turn != session.turn + 1
                or session.over
                or session.used <= oldest_allowed
                or (request.episode is not None and request.episode != session.episode)
            ):
                replies.append(self._repeat_or_refuse(request, now))
                continue
            session.used, session.turn = now, request.turn
            began = clock()
            try:
                reply = StepReply(
                    request.session,
                    request.turn,
                    *limited("turn", session.task, request.turn, session.env.step, request.action),
                )
            except Exception as error:
                fault = self._fault(request.session, error)
                reply = StepReply(request.session, request.turn, error=fault)
            seconds = clock() - began
            taken.append(seconds)
            if session.env.env_errors:
                self._count_incidents(session.env)
            session.over = session.over or reply.terminated or reply.truncated
            session.reply, session.asked = reply, hash(request.action)
            replies.append(reply)
            if self._log_steps:
                self._log_step(request, reply, seconds)
        self._figures.count_steps(taken)
        return replies

    def expert(self, requests: Sequence[SessionRequest]) -> list[ExpertReply]:
        """The oracle's action for each session's next turn."""
        if self._card.has_expert:
            return [self._answer(request, ExpertReply, _expert_move) for request in requests]
        none = f"{self._env_id} has no expert"
        return [ExpertReply(r.session, None, WireError("no_expert", none)) for r in requests]

    def actions(self, requests: Sequence[SessionRequest]) -> list[ActionsReply]:
        """What can be done in each session's next turn."""
        return [self._answer(request, ActionsReply, _available_actions) for request in requests]

    def close(self, requests: Sequence[SessionRequest]) -> list[CloseReply]:
        """End sessions, by name or key; one that is not there is answered, not an error."""
        return [CloseReply(r.session, self._close(r.session)) for r in requests]

    def _close(self, name: str) -> bool:
        keyed = self._name_prefix + name
        if self._end(name) or self._end(keyed):
            return True
        # A session may be closed by its key before a late request opens it: it must not open then.
        self._never[keyed] = None
        if len(self._never) > _NEVER:
            del self._never[next(iter(self._never))]
        return False

    def renew(self, requests: Sequence[RenewRequest]) -> list[RenewReply]:
        """Renew leases. It does not count as use: idle sessions of a client that lives end too."""
        replies = []
        for request in requests:
            session = self._sessions.get(request.session)
            if session is not None:
                session.lease_s, session.renewed = request.lease_s, self._awake_s
            replies.append(RenewReply(request.session, session is not None))
        return replies

    def reap(self, most: int | None = None) -> int:
        """End the sessions past their time to live or lease, at most so many; return how many."""
        now = self._clock()
        nap_s = now - self._reaped_at
        self._awake_s += nap_s if nap_s <= _LONGEST_NAP_S else _BLOCKED_S
        self._reaped_at = now
        past = [name for name, s in self._sessions.items() if self._is_past(s, now)]
        return self._reap(past[:most])

    def _is_past(self, session: Session, now: float) -> bool:
        idle_s, lease_s = now - session.used, session.lease_s
        if idle_s >= self._ttl_s:
            return True
        return lease_s is not None and min(idle_s, self._awake_s - session.renewed) >= lease_s

    def _reap(self, names: Sequence[str]) -> int:
        for name in names:
            self._end(name)
        self._figures.reaped += len(names)
        if names:
            event(logger, logging.INFO, "reaped", sessions=len(names), left=len(self))
        return len(names)

    def _free_oldest(self) -> bool:
        """End the session that was idle longest, if it may be ended; whether one was."""
        idle_since = self._clock() - _IDLE_S
        idle = [
            (session.used, name)
            for name, session in self._sessions.items()
            if session.used <= idle_since and session.lease_s is None
        ]
        return bool(idle) and bool(self._reap([min(idle)[1]]))

    def shutdown(self) -> None:
        """End every session."""
        for name in list(self._sessions):
            self._end(name)
        if self._spare is not None:
            self._close_env(self._spare)
            self._spare = None

    def unsendable(self, reply: Reply, error: Exception) -> Reply:
        """Replace a reply that is not serializable by an environment error."""
        failure = self._fault(reply.session, error)
        if not isinstance(reply, StepReply):
            return type(reply)(session=reply.session, error=failure)
        lost = StepReply(reply.session, reply.turn, error=failure)
        session = self._sessions.get(reply.session)
        if session is not None and session.turn == reply.turn:
            session.reply = lost
        return lost

    def _create(self, request: CreateRequest) -> CreateReply:
        if request.env is not None and request.env != self._env_id:
            text = f"{self._env_id} is served here, not {cut(request.env)!r}"
            return CreateReply(error=WireError("bad_request", text))
        if len(self._sessions) >= self._max_sessions and not self._free_oldest():
            share = self._max_sessions
            whole = "" if share == self._server_sessions else f" (of {self._server_sessions}, here)"
            text = (
                f"all {share}{whole} sessions are taken; close some, or raise the limit "
                "(--max-sessions). Those of a client that is gone end within a minute"
            )
            return CreateReply(error=WireError("too_many_sessions", text))
        name = self._name_prefix + (request.key or secrets.token_urlsafe(18))
        if name in self._never:
            text = "the session with this key is closed already; choose another"
            return CreateReply(error=WireError("bad_request", text, cut(name)))
        if name in self._sessions:
            text = "there is a session with this key; choose another"
            return CreateReply(error=WireError("bad_request", text, cut(name)))
        try:
            env = self._spare or self.time_limit.call("making a session", None, 0, self._make_env)
        except Exception as error:
            return CreateReply(error=self._fault(None, error))
        self._spare = None
        self._sessions[name] = Session(env, used=self._clock())
        self._figures.created += 1
        return CreateReply(name)

    def _reset(self, request: ResetRequest) -> ResetReply:
        session = self._find(request.session, self._clock())
        if session is None:
            return ResetReply(request.session, error=unknown_session(request.session))
        if request.seed is not None and not 0 <= request.seed <= MAX_SEED:
            text = f"a seed is a whole number from 0 to {MAX_SEED}, got {cut(str(request.seed))}"
            error = WireError("bad_request", text, request.session)
            return ResetReply(request.session, error=error)
        asked = (request.seed, request.task, request.split)
        if request.episode is not None and request.episode <= session.episode:
            return self._repeated_reset(session, request, asked)
        named = {"task": request.task, "split": request.split}
        options = {key: value for key, value in named.items() if value is not None}
        try:
            observation, info = self.time_limit.call(
                "the reset", request.task, 0,
                partial(session.env.reset, seed=request.seed, options=options),
            )  # fmt: skip
        except Exception as error:
            return ResetReply(request.session, error=self._error(request.session, error))
        session.episode = session.episode + 1 if request.episode is None else request.episode
        reply = ResetReply(request.session, 0, observation, info, session.episode)
        session.turn, session.over, session.reply, session.asked = 0, False, reply, asked
        session.task = str(info.get("task", request.task))
        return reply

    def _repeated_reset(self, session: Session, request: ResetRequest, asked: object) -> ResetReply:
        """The stored reply to a reset that is repeated before the first turn, or an error."""
        reply = session.reply
        if (
            isinstance(reply, ResetReply)
            and request.episode == session.episode
            and asked == session.asked
        ):
            return reply
        text = (
            f"episode {request.episode} was started already; the session's is {session.episode}"
            if request.episode
            else "episodes of a session are numbered from 1"
        )
        error = WireError("stale_turn", text, request.session)
        return ResetReply(request.session, error=error)

    def _repeat_or_refuse(self, request: StepRequest, now: float) -> StepReply:
        session = self._find(request.session, now)
        if session is None:
            error = unknown_session(request.session)
            return StepReply(request.session, request.turn, error=error)
        if (
            isinstance(session.reply, StepReply)
            and request.turn == session.turn
            and hash(request.action) == session.asked
            and _is_of_episode(session, request)
        ):
            return session.reply
        return refused_turn(session, request)

    def _answer(
        self, request: SessionRequest, kind: type[A], ask: Callable[[TextEnv], dict[str, Any]]
    ) -> A:
        """Answer a question about a session's episode, which stays as it is."""
        session = self._find(request.session, self._clock())
        if session is None:
            return kind(request.session, error=unknown_session(request.session))
        if session.over:
            text = "there is no episode; reset the session first"
            return kind(request.session, error=WireError("episode_over", text, request.session))
        try:
            told = self.time_limit.call("a question", session.task, 0, ask, session.env)
            return kind(request.session, **told)
        except Exception as error:
            return kind(request.session, error=self._error(request.session, error))

    def _count_incidents(self, env: TextEnv) -> None:
        for name in env.env_errors:
            count(self._figures.env_errors, name)
        env.env_errors.clear()

    def _log_step(self, request: StepRequest, reply: StepReply, seconds: float) -> None:
        action = {"action": cut(request.action)} if self._log_actions else {}
        event(
            logger, logging.INFO if self._log_actions else logging.DEBUG, "step",
            session=request.session, turn=request.turn, **action, reward=reply.reward,
            ended=reply.terminated or reply.truncated, ms=round(seconds * 1000, 3),
        )  # fmt: skip

    def _find(self, name: str, now: float) -> Session | None:
        session = self._sessions.get(name)
        if session is None:
            return None
        if now - session.used >= self._ttl_s:
            self._end(name)
            self._figures.reaped += 1
            return None
        session.used = now
        return session

    def _close_env(self, env: TextEnv, task: str | None = None) -> None:
        """End a world; one that fails at it is logged."""
        try:
            self.time_limit.call("the end", task, 0, env.close)
        except Exception:
            # A world that fails to close must not keep the table from ending other sessions.
            logger.exception("closing a %s failed", type(env).__name__)

    def _end(self, name: str) -> bool:
        session = self._sessions.pop(name, None)
        if session is None:
            return False
        self._close_env(session.env, session.task)
        return True

    def _error(self, name: str, error: Exception) -> WireError:
        """The wire's error code for an exception of the environment."""
        return refusal(name, error) or self._fault(name, error)

    def _fault(self, name: str | None, error: Exception) -> WireError:
        """The environment's own code failed: the episode is over."""
        session = self._sessions.get(name) if name is not None else None
        if session is not None:
            session.over = True
        return fault(name, error, log_message=self._log_actions)

    def _describe(self, env: TextEnv) -> EnvCard:
        spaces = (env.observation_space, env.action_space)
        lengths = [s.max_length if isinstance(s, TextSpace) else 1_000_000 for s in spaces]
        return EnvCard(
            env=self._env_id,
            instruction=clean_text(env.instruction),
            splits={name: len(ids) for name, ids in env.tasks.splits.items()},
            default_split=env.default_split,
            observation_max_length=lengths[0],
            action_max_length=lengths[1],
            has_expert=env.has_expert(),
            max_sessions=self._server_sessions,
            version=self._version,
            selections={name: len(ids) for name, ids in env.tasks.selections.items()},
            tools=tuple(env.tool_specs()),
        )


def reap_period_s(ttl_s: float) -> float:
    """How often to look for idle sessions."""
    shortest, longest = _REAP_EVERY_S
    return min(longest, max(shortest, ttl_s / 4))


def _is_of_episode(session: Session, request: StepRequest) -> bool:
    """Whether a turn is of the session's current episode, as far as it states one."""
    return request.episode is None or request.episode == session.episode


def _expert_move(env: TextEnv) -> dict[str, Any]:
    action = env.expert_action()
    if action is None:
        return {}
    return {"action": clean_text(action), "thought": clean_text(env.expert_thought())}


def _available_actions(env: TextEnv) -> dict[str, Any]:
    actions = env.available_actions()
    return {} if actions is None else {"actions": [clean_text(action) for action in actions]}
