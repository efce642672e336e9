"""From an exception of a world to the wire's word for it."""

from __future__ import annotations

import logging

from agentgym_env.errors import (
    BadRequest,
    EnvironmentFault,
    EpisodeOver,
    UnknownSplit,
    UnknownTask,
)
from agentgym_env.spaces import clean_text
from agentgym_env.wire import STATUS, WireError
from agentgym_servers.logs import event, where

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 2000


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
    text = "there is no such session: it was closed, stood idle too long, or never was; open one"
    return WireError("unknown_session", text, cut(name))


def cut(text: str) -> str:
    """As much of a text as an error message holds."""
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."
