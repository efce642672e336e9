"""OpenEnv's messages: what is read, what is written, and the schemas that describe both.

As in OpenEnv's `core/env_server` (0.3 to 0.10): one text goes in and one comes out. What its
protocol has no place for, `truncated` and the info, travels in the observation's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from agentgym_env.wire import MAX_SEED, EnvCard, ResetReply, StepReply

ACTION_FIELD: Final = "message"
OBSERVATION_FIELD: Final = "text"
API_VERSION: Final = "1.0.0"


class ResetData(Struct):
    """The fields of a reset; unknown fields are ignored, as by OpenEnv's servers.

    A task is named by its id (`task`), or as in OpenEnv's task API by `split` and `index`.
    """

    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    episode_id: Annotated[str, Meta(max_length=255)] | None = None
    task: str | None = None
    split: str | None = None
    index: Annotated[int, Meta(ge=0)] | None = None


class ActionData(Struct, forbid_unknown_fields=True):
    """An action: a text."""

    message: str
    metadata: dict[str, Any] = {}


class StepBody(ResetData, kw_only=True):
    """The body of `POST /step`: an action, and how to begin the episode that it is the turn of."""

    action: dict[str, Any]
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    request_id: Annotated[str, Meta(max_length=255)] | None = None


class WsMessage(Struct, forbid_unknown_fields=True):
    """A message over the WebSocket."""

    type: str
    data: dict[str, Any] = {}


class SplitBody(Struct, forbid_unknown_fields=True):
    """Asks about a split."""

    split: str


class TaskBody(Struct, forbid_unknown_fields=True):
    """Asks for one task."""

    split: str
    index: int


class RangeBody(Struct, forbid_unknown_fields=True):
    """Asks for tasks by the bounds of a Python slice."""

    split: str
    start: int | None = None
    stop: int | None = None


def reset_result(reply: ResetReply, instruction: str) -> dict[str, Any]:
    """The first observation; its reward is null. Contains the instruction, once."""
    metadata = {"instruction": instruction, "terminated": False, "truncated": False}
    return _result(reply.observation, None, False, {**metadata, "info": reply.info})


def step_result(reply: StepReply) -> dict[str, Any]:
    """The result of a step; `done` is true for both kinds of end."""
    metadata = {"terminated": reply.terminated, "truncated": reply.truncated, "info": reply.info}
    done = reply.terminated or reply.truncated
    return _result(reply.observation, reply.reward, done, metadata)


def _result(
    text: str, reward: float | None, done: bool, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    # Typed clients read the metadata inside the observation, generic ones beside it.
    observation = {OBSERVATION_FIELD: text, "metadata": metadata}
    return {"observation": observation, "reward": reward, "done": done, "metadata": metadata}


def error_message(message: str, code: str, **details: Any) -> dict[str, Any]:
    """An error over the WebSocket."""
    return {"type": "error", "data": {"message": message, "code": code, **details}}


def metadata(card: EnvCard) -> dict[str, Any]:
    """The body of `GET /metadata`."""
    return {
        "name": card.env, "description": card.instruction, "version": card.version or None,
        "readme_content": None, "author": None, "documentation_url": None,
    }  # fmt: skip


def schemas(card: EnvCard) -> dict[str, Any]:
    """The body of `GET /schema`: JSON schemas of actions, observations and the state."""
    metadata = {"type": "object", "additionalProperties": True, "title": "Metadata"}
    observation = {
        "title": "TextObservation", "type": "object", "additionalProperties": False,
        "required": [OBSERVATION_FIELD],
        "properties": {
            OBSERVATION_FIELD: {"type": "string", "maxLength": card.observation_max_length},
            "reward": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            "done": {"type": "boolean", "default": False},
            "metadata": metadata,
        },
    }  # fmt: skip
    action = {
        "title": "TextAction", "type": "object", "additionalProperties": False,
        "required": [ACTION_FIELD],
        "properties": {
            ACTION_FIELD: {
                "type": "string", "maxLength": card.action_max_length,
                "description": "The action, as the instruction in GET /metadata says.",
            },
            "metadata": metadata,
        },
    }  # fmt: skip
    state = {
        "title": "State", "type": "object", "additionalProperties": True,
        "properties": {
            "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "step_count": {"type": "integer", "minimum": 0, "default": 0},
            "available_actions": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "default": None,
            },
        },
    }  # fmt: skip
    return {
        "action": action, "observation": observation, "reset_observation": observation,
        "state": state,
    }  # fmt: skip


def rpc_answer(given: Any) -> dict[str, Any]:
    """The answer of JSON-RPC; tools are no part of this protocol (`--protocol mcp` has them)."""
    known = isinstance(given, dict) and given.get("jsonrpc") == "2.0"
    if not known or not isinstance(given.get("method"), str):
        return _rpc_error(None, -32600, "Invalid request: not a message of JSON-RPC 2.0")
    if given["method"] in ("tools/list", "tools/call"):
        return _rpc_error(given.get("id"), -32603, "Environment does not support MCP")
    text = f"Method not found: {given['method'][:100]}"
    return _rpc_error(given.get("id"), -32601, text)


def rpc_unreadable() -> dict[str, Any]:
    """The JSON-RPC response to invalid JSON."""
    return _rpc_error(None, -32700, "Parse error")


def _rpc_error(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": number}


def openapi(card: EnvCard, paths: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """A description of the routes, as OpenEnv's validator reads it."""
    answers = {"200": {"description": "As OpenEnv defines it"}}
    described = {
        path: {
            method.lower(): {"summary": text, "responses": answers}
            for method, text in methods.items()
        }
        for path, methods in paths.items()
    }
    info = {"title": card.env, "version": API_VERSION, "description": card.instruction}
    return {"openapi": "3.1.0", "info": info, "paths": described}
