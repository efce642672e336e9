"""One session's episode: where it stands, and which turn may be taken next."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from agentgym_env.text_env import TextEnv
from agentgym_env.wire import StepReply, StepRequest, WireError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Session:
    """One environment and where its episode stands."""

    env: TextEnv
    used: float
    """When it was last spoken to, by the table's clock."""
    turn: int = -1
    """The last turn answered; 0 after a reset, -1 before the first one."""
    over: bool = True
    reply: StepReply | None = None
    """The answer to the last turn, for a client that asks again."""


def refused_turn(session: Session, request: StepRequest) -> StepReply:
    """The reply to a turn that cannot be taken."""
    if session.turn < 0:
        code, text = "episode_over", "no episode was started; reset the session before stepping it"
    elif request.turn != session.turn + 1:
        code = "stale_turn"
        text = f"turn {request.turn} cannot be taken: the next one is {session.turn + 1}"
    else:
        code, text = "episode_over", "the episode has ended; reset the session before stepping it"
    error = WireError(code, text, request.session)
    return StepReply(request.session, request.turn, error=error)


def close_env(env: TextEnv) -> None:
    """End a world; one that fails at it is logged."""
    try:
        env.close()
    except Exception:
        # A world that fails to close must not keep the table from ending other sessions.
        logger.exception("closing a %s failed", type(env).__name__)
