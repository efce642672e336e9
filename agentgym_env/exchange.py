"""Messages to calls and answers to messages or exceptions; knows nothing about sessions."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET

from agentgym_env.errors import (
    AgentGymError,
    BadRequest,
    EnvironmentFault,
    EnvironmentLost,
    EpisodeOver,
    UnknownSplit,
    UnknownTask,
)
from agentgym_env.transports import Answer, Call
from agentgym_env.wire import MAX_ITEMS, ErrorBody, WireError, decode, encode

R = TypeVar("R")

_MAX_CALL_BYTES = 4 * 2**20  # well under a host's default limit of 16 MiB
_LOST = frozenset({"unknown_session", "shutting_down"})
_FAULT = frozenset({"environment_error", "deadline"})


def batch_calls(
    path: str, requests: Sequence[Any], max_items: int = MAX_ITEMS
) -> Iterator[tuple[Call, int]]:
    """The calls that carry `requests`, each with how many of them it holds."""
    held: list[bytes] = []
    size = 0
    for message in map(encode, requests):
        if held and (size + len(message) > _MAX_CALL_BYTES or len(held) == max_items):
            yield Call(path, b"[" + b",".join(held) + b"]"), len(held)
            held, size = [], 0
        held.append(message)
        size += len(message) + 1
    if held:
        yield Call(path, b"[" + b",".join(held) + b"]"), len(held)


def read_batch(
    answer: Answer | EnvironmentLost, reply: type[R], count: int, address: str
) -> list[R | AgentGymError]:
    """The `count` replies of one call, each a message or the exception it stands for."""
    if isinstance(answer, EnvironmentLost):
        return _for_each(answer, count)
    if not answer.body.startswith(b"["):
        return _for_each(_read_error(answer, address), count)
    replies = _decode(answer, list[reply], address)  # type: ignore[valid-type]
    if isinstance(replies, AgentGymError):
        return _for_each(replies, count)
    if len(replies) != count:
        text = f"{address} answered {len(replies)} items to {count}; see what listens there"
        return _for_each(EnvironmentLost(text, code="protocol"), count)
    errors = (getattr(message, "error", UNSET) for message in replies)
    return [
        message if error is UNSET else to_exception(error, address)
        for message, error in zip(replies, errors, strict=True)
    ]


def read_one(answer: Answer | EnvironmentLost, reply: type[R], address: str) -> R | AgentGymError:
    """The one message of a GET, or the exception it stands for."""
    if isinstance(answer, EnvironmentLost):
        return answer
    if answer.status != 200:
        return _read_error(answer, address)
    return cast("R | AgentGymError", _decode(answer, reply, address))


def to_exception(error: WireError, address: str) -> AgentGymError:
    """The exception that a wire error stands for."""
    if error.code in _LOST:
        return EnvironmentLost(f"{error.message} (at {address})", code=error.code)
    if error.code in _FAULT:
        return EnvironmentFault(f"{error.message} (at {address})", code=error.code)
    match error.code:
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
            f"{address} does not answer as an environment server does (status {answer.status}: "
            f"{error}); see what listens there",
            code="protocol",
        )
