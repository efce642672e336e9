"""Rows of conversations, in the format of AgentGym's files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec

from agentgym_env.errors import AgentGymError, ConfigError, UnknownEnvironment
from agentgym_env.registry import env_class, full_id, registered
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

_ACKNOWLEDGEMENT: Final = "OK."

_POLICY: Final = frozenset({"gpt", "assistant"})

_OTHERS: Final = frozenset({"human", "user", "system"})

_NUMBERED: Final = re.compile(r"[A-Za-z]+_\d+")

_NAMES: Final = {"searchqa": "search"}
"""AgentGym's names of worlds that have another name here."""


def conversation_row(trajectory: Trajectory, *, tokens: bool = True) -> dict[str, Any]:
    """One episode; see `item_id`."""
    dialogue = dialogue_of(trajectory)
    messages: list[dict[str, Any]] = []
    if dialogue.instruction:
        messages += [_human(dialogue.instruction), _gpt(_ACKNOWLEDGEMENT, loss=False)]
    messages.append(_human(dialogue.observation))
    for turn, (response, answer) in zip(trajectory.turns, dialogue.exchanges, strict=True):
        messages.append(_gpt(response, loss=turn.info.get("loss") is not False))
        if answer is not None:
            messages.append(_human(answer))
    return {
        "item_id": item_id(trajectory.env, trajectory.task),
        "conversations": messages,
        "reward": trajectory.reward,
        "success": trajectory.success,
        COLUMN: rest_of(trajectory, tokens=tokens),
    }


def read_conversation(row: dict[str, Any], env: str = "") -> Trajectory:
    """The episode of a row, ours or AgentGym's; raises `ConfigError` if there is none.

    AgentGym's rows without a reward are successes, as its demonstrations are. `env` is the
    environment of rows that do not name one.
    """
    messages = row.get("conversations")
    if messages is None:
        raise ConfigError("it names a task and has no conversation")
    if not isinstance(messages, list) or not messages:
        raise ConfigError("its conversations are not a list of messages")
    read = [_read_message(number, message) for number, message in enumerate(messages, 1)]
    dialogue, losses = _dialogue(read)
    if isinstance(row.get(COLUMN), str):
        return _with_losses(restored(dialogue, row[COLUMN]), losses)
    item = str(row.get("item_id", ""))
    reward = row.get("reward")
    if reward is not None and not isinstance(reward, int | float):
        raise ConfigError(f"its reward must be a number, got {reward!r}")
    return made_of(
        dialogue,
        env=env or _env_of(item.rpartition("_")[0]),
        task=item,  # our worlds have these names as aliases
        # AgentGym counts 1 as solved, and 100 in worlds that score in percent.
        success=bool(row.get("success", reward is None or reward in (1, 100))),
        reward=None if reward is None else float(reward),
        infos=[{} if loss is not False else {"loss": False} for loss in losses],
    )


def item_id(env: str, task: str) -> str:
    """The name that AgentGym gives a task, `textcraft_17`.

    If the world is not installed, or AgentGym has no number for the task, it consists of the
    world's name and the task.
    """
    if _NUMBERED.fullmatch(task):
        return task
    name = re.sub(r"-v\d+$", "", env.rpartition("/")[2]).lower()
    return _numbers(env).get(task, f"{name}_{task}")


def _with_losses(episode: Trajectory, losses: Sequence[bool | None]) -> Trajectory:
    """The episode with the row's own flags, which may have been edited."""
    turns = []
    for turn, loss in zip(episode.turns, losses, strict=True):
        info = {name: value for name, value in turn.info.items() if name != "loss"}
        info = {**info, "loss": False} if loss is False else info
        turns.append(msgspec.structs.replace(turn, info=info))
    return msgspec.structs.replace(episode, turns=turns)


@cache
def _numbers(env: str) -> dict[str, str]:
    if env not in {entry.env_id for entry in registered()}:
        return {}  # A file of episodes does not choose what code is imported.
    try:
        known = env_class(env)().tasks.aliases
    except (AgentGymError, ImportError, OSError):
        return {}
    return {task: name for name, task in known.items()}


def _dialogue(messages: list[tuple[bool, str, Any]]) -> tuple[Dialogue, list[Any]]:
    """The texts, and the `loss` of each response; the acknowledgement is left out."""
    instruction = ""
    if len(messages) > 2 and [by_policy for by_policy, _, _ in messages[:3]] == [
        False,
        True,
        False,
    ]:
        _, acknowledgement, loss = messages[1]
        if loss is False or (loss is None and acknowledgement.lower().startswith("ok")):
            instruction, messages = messages[0][1], messages[2:]
    dialogue = folded(instruction, ((by_policy, text) for by_policy, text, _ in messages))
    return dialogue, [loss for by_policy, _, loss in messages if by_policy]


def _read_message(number: int, message: Any) -> tuple[bool, str, Any]:
    """(whether it is the policy's, the text, its `loss`)."""
    if not isinstance(message, dict):
        raise ConfigError(f"message {number} is not an object")
    role = message.get("from", message.get("role"))
    text = message.get("value", message.get("content"))
    if role not in _POLICY | _OTHERS or not isinstance(text, str):
        raise ConfigError(
            f"message {number} is not a text from human or gpt: it is from {str(role)[:40]!r}"
        )
    return role in _POLICY, text, message.get("loss")


def _env_of(name: str) -> str:
    """Our id of one of AgentGym's worlds; its own name if there is no such world here."""
    try:
        return full_id(_NAMES.get(name.lower(), name)) if name else ""
    except UnknownEnvironment:
        return name


def _human(text: str) -> dict[str, Any]:
    return {"from": "human", "loss": None, "value": text}


def _gpt(text: str, *, loss: bool) -> dict[str, Any]:
    return {"from": "gpt", "loss": loss, "value": text}
