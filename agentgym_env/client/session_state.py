"""A session as its client sees it: numbers its episodes and turns; does no input or output."""

from __future__ import annotations

from typing import Any

from agentgym_env.client import leases
from agentgym_env.client.pool import Server
from agentgym_env.errors import (
    AgentGymError,
    BadRequest,
    EnvironmentFault,
    EnvironmentLost,
    EpisodeOver,
)
from agentgym_env.spaces import clean_text
from agentgym_env.text_env import check_names, check_seed
from agentgym_env.wire import ResetReply, ResetRequest, SessionRequest, StepReply, StepRequest


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
