"""One session as its client sees it: its turn, whether its episode goes on, whether it is lost."""

from __future__ import annotations

from typing import Any

from agentgym_env.errors import (
    AgentGymError,
    BadRequest,
    EnvironmentFault,
    EnvironmentLost,
    EpisodeOver,
)
from agentgym_env.pool import Server
from agentgym_env.spaces import clean_text
from agentgym_env.wire import (
    MAX_SEED,
    ResetReply,
    ResetRequest,
    SessionRequest,
    StepReply,
    StepRequest,
)


class SessionState:
    """Numbers the turns and refuses what cannot be asked; does no input or output.

    `begin_...` gives the request to send, `end_...` takes in what came of it. A call that was
    begun and never ended leaves the episode unknown, so the session is lost: going on might pair
    an action with the answer to another.
    """

    def __init__(self, name: str, server: Server[Any]) -> None:
        self.name = name
        self.server = server
        self._turn = 0
        self._over: str | None = "no episode was started"
        self._under_way = False
        self._lost: EnvironmentLost | None = None
        self._closed = False
        server.open_sessions += 1

    @property
    def address(self) -> str:
        """The server that holds the session."""
        return self.server.address

    @property
    def is_lost(self) -> bool:
        """Whether the session is of no more use."""
        return self._closed or self._lost is not None or self._under_way

    def begin_reset(self, seed: int | None, task: str | None, split: str | None) -> ResetRequest:
        """The request for a new episode."""
        for name, text in (("task", task), ("split", split)):
            if text is not None and not isinstance(text, str):
                raise BadRequest(f"a {name} is a str, got {text!r}")
        if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__")):
            raise BadRequest(f"a seed is an int, got {seed!r}")
        if seed is not None and not 0 <= seed <= MAX_SEED:
            raise BadRequest(f"a seed is from 0 to {MAX_SEED}, got {seed}")
        self._begin()
        return ResetRequest(
            self.name,
            None if seed is None else seed.__index__(),
            None if task is None else clean_text(task),
            None if split is None else clean_text(split),
        )

    def end_reset(self, reply: ResetReply | AgentGymError) -> None:
        """Take in what came of a reset. One that was refused leaves the old episode as it was."""
        self._end(reply)
        if isinstance(reply, ResetReply):
            self._turn, self._over = 0, None

    def begin_step(self, action: str) -> StepRequest:
        """The request for the next turn."""
        if not isinstance(action, str):
            raise BadRequest(f"an action is a str, got {type(action).__name__}")
        self._check_episode("call reset() before step()")
        self._begin()
        return StepRequest(self.name, self._turn + 1, clean_text(action))

    def end_step(self, reply: StepReply | AgentGymError) -> None:
        """Take in what came of a step."""
        self._end(reply)
        if isinstance(reply, StepReply):
            self._turn = reply.turn
            if reply.terminated or reply.truncated:
                self._over = "the episode has ended"

    def begin_question(self) -> SessionRequest:
        """The request for what leaves the episode as it is: the oracle's action, the actions."""
        self._check_episode("call reset() first")
        self._check_usable()
        return SessionRequest(self.name)

    def close(self) -> bool:
        """Let the session go; whether its server should be told."""
        if self._closed:
            return False
        self._closed = True
        if self._lost is None:
            self.server.open_sessions -= 1
        return self._lost is None

    def lose(self, failure: EnvironmentLost) -> None:
        """The session is gone."""
        if self._lost is None and not self._closed:
            self.server.open_sessions -= 1
        self._lost = self._lost or failure

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
