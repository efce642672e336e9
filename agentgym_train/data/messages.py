"""Rows of chat messages: one episode, or a DPO pair of two."""

from __future__ import annotations

from typing import Any

from agentgym_env.errors import ConfigError
from agentgym_env.trajectory import Trajectory
from agentgym_train.data.dialogue import (
    COLUMN,
    Dialogue,
    dialogue_of,
    folded,
    made_of,
    rest_of,
    restored,
)
from agentgym_train.data.pairs import Pair

Messages = list[dict[str, str]]


def messages_row(trajectory: Trajectory, *, tokens: bool = True) -> dict[str, Any]:
    """One episode; the columns beside `messages` are plain values for filtering."""
    dialogue = dialogue_of(trajectory)
    return {
        "messages": [*prompt_of(dialogue), *completion_of(dialogue)],
        "env": trajectory.env,
        "task": trajectory.task,
        "success": trajectory.success,
        "reward": trajectory.reward,
        COLUMN: rest_of(trajectory, tokens=tokens),
    }


def read_messages(row: dict[str, Any], env: str = "") -> Trajectory:
    """The episode of a row from any source; raises `ConfigError` if there is none.

    A row that is not from our export is a success unless its `success` is false.
    """
    dialogue = dialogue_in(row.get("messages"), "messages")
    if isinstance(row.get(COLUMN), str):
        return restored(dialogue, row[COLUMN])
    return made_of(
        dialogue,
        env=env or str(row.get("env", "")),
        task=str(row.get("task", "")),
        success=bool(row.get("success", True)),
    )


def dpo_row(pair: Pair, *, tokens: bool = True) -> dict[str, Any]:
    """One pair."""
    chosen, rejected = dialogue_of(pair.chosen), dialogue_of(pair.rejected)
    return {
        "prompt": prompt_of(chosen),
        "chosen": completion_of(chosen),
        "rejected": completion_of(rejected),
        "env": pair.chosen.env,
        "task": pair.chosen.task,
        f"{COLUMN}_chosen": rest_of(pair.chosen, tokens=tokens),
        f"{COLUMN}_rejected": rest_of(pair.rejected, tokens=tokens),
    }


def read_pair(row: dict[str, Any], env: str = "") -> Pair:
    """The pair of a row from any source; raises `ConfigError` if there is none.

    Without our column, the chosen episode is a success and the rejected one a failure.
    """
    return Pair(_side(row, "chosen", env), _side(row, "rejected", env))


def prompt_of(dialogue: Dialogue) -> Messages:
    """The messages before the policy's first turn."""
    system = [_message("system", dialogue.instruction)] if dialogue.instruction else []
    return [*system, _message("user", dialogue.observation)]


def completion_of(dialogue: Dialogue) -> Messages:
    """The messages from the policy's first response to its last."""
    messages = []
    for response, answer in dialogue.exchanges:
        messages.append(_message("assistant", response))
        if answer is not None:
            messages.append(_message("user", answer))
    return messages


def dialogue_in(messages: Any, column: str) -> Dialogue:
    """The texts of a list of messages; raises `ConfigError` if it is not one."""
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f"its {column} are not a list of messages")
    texts = [_role_and_text(column, number, m) for number, m in enumerate(messages, 1)]
    system = [texts.pop(0)[1]] if texts[0][0] == "system" else []
    return folded("".join(system), ((role == "assistant", text) for role, text in texts))


def _side(row: dict[str, Any], side: str, env: str) -> Trajectory:
    prompt, completion = (_messages(row.get(name)) for name in ("prompt", side))
    dialogue = dialogue_in([*prompt, *completion], f"prompt and {side}")
    column = row.get(f"{COLUMN}_{side}")
    if isinstance(column, str):
        return restored(dialogue, column)
    return made_of(
        dialogue,
        env=env or str(row.get("env", "")),
        task=str(row.get("task", "")),
        success=side == "chosen",
    )


def _messages(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _role_and_text(column: str, number: int, message: Any) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ConfigError(f"message {number} of its {column} has no role")
    text = message.get("content")
    if isinstance(text, list):  # blocks, as in multimodal messages
        text = "".join(b["text"] for b in text if isinstance(b, dict) and "text" in b)
    if not isinstance(text, str):
        raise ConfigError(f"message {number} of its {column} has no text")
    return message["role"], text


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
