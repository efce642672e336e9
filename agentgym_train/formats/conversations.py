"""AgentGym's own format: `item_id`, and `conversations` with `from`, `loss` and `value`.

Its first two messages are the rules and an acknowledgement without loss. Rows of its rollout logs,
with `role` and `content` and a number for an `item_id`, are read as well.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from agentgym_env.errors import AgentGymError, BadRequest, UnknownEnvironment
from agentgym_env.registration import env_class, full_id, registered
from agentgym_env.trajectory import Trajectory
from agentgym_train.formats.dialogue import (
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
"""Their worlds whose name here is another."""


def to_row(trajectory: Trajectory, *, tokens: bool = True) -> dict[str, Any]:
    """One episode; see `item_id`."""
    dialogue = dialogue_of(trajectory)
    messages: list[dict[str, Any]] = []
    if dialogue.instruction:
        messages += [_human(dialogue.instruction), _gpt(_ACKNOWLEDGEMENT, loss=False)]
    messages.append(_human(dialogue.observation))
    for turn, (words, answer) in zip(trajectory.turns, dialogue.exchanges, strict=True):
        messages.append(_gpt(words, loss=turn.info.get("loss") is not False))
        if answer is not None:
            messages.append(_human(answer))
    return {
        "item_id": item_id(trajectory.env, trajectory.task),
        "conversations": messages,
        "reward": trajectory.reward,
        "success": trajectory.success,
        COLUMN: rest_of(trajectory, tokens=tokens),
    }


def from_row(row: dict[str, Any], env: str = "") -> Trajectory:
    """The episode of a row, ours or theirs; raises `BadRequest` where there is none.

    A row of theirs that says nothing of its reward is taken for a success, as their
    demonstrations are. `env` is the environment of rows that do not name one.
    """
    messages = row.get("conversations")
    if messages is None:
        raise BadRequest("it names a task and has no conversation")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("its conversations are no list of messages")
    spoken = [_spoken(number, message) for number, message in enumerate(messages, 1)]
    dialogue, losses = _dialogue(spoken)
    if isinstance(row.get(COLUMN), str):
        return restored(dialogue, row[COLUMN])
    item = str(row.get("item_id", ""))
    reward = row.get("reward")
    if reward is not None and not isinstance(reward, int | float):
        raise BadRequest(f"its reward is no number, got {reward!r}")
    return made_of(
        dialogue,
        env=env or _env_of(item.rpartition("_")[0]),
        task=item,  # our worlds know their tasks by these names, too
        # Theirs counts 1 as solved, and 100 where a world counts in percent.
        success=bool(row.get("success", reward is None or reward in (1, 100))),
        reward=None if reward is None else float(reward),
        infos=[{} if loss is not False else {"loss": False} for loss in losses],
    )


def item_id(env: str, task: str) -> str:
    """The name that AgentGym gives a task, `textcraft_17`.

    Where the world is not installed here, or AgentGym numbers no such task, it is the world's name
    and the task's own.
    """
    if _NUMBERED.fullmatch(task):
        return task
    name = re.sub(r"-v\d+$", "", env.rpartition("/")[2]).lower()
    return _numbers(env).get(task, f"{name}_{task}")


@cache
def _numbers(env: str) -> dict[str, str]:
    if env not in {entry.env_id for entry in registered()}:
        return {}  # A file of episodes does not choose what code is imported.
    try:
        known = env_class(env)().tasks.aliases
    except (AgentGymError, ImportError, OSError):
        return {}
    return {task: name for name, task in known.items()}


def _dialogue(spoken: list[tuple[bool, str, Any]]) -> tuple[Dialogue, list[Any]]:
    """The texts, and the `loss` of each of the policy's; the acknowledgement is left out."""
    instruction = ""
    if len(spoken) > 2 and [by_policy for by_policy, _, _ in spoken[:3]] == [False, True, False]:
        _, words, loss = spoken[1]
        if loss is False or (loss is None and words.lower().startswith("ok")):
            instruction, spoken = spoken[0][1], spoken[2:]
    dialogue = folded(instruction, ((by_policy, text) for by_policy, text, _ in spoken))
    return dialogue, [loss for by_policy, _, loss in spoken if by_policy]


def _spoken(number: int, message: Any) -> tuple[bool, str, Any]:
    """(whether the policy says it, the text, its `loss`)."""
    if not isinstance(message, dict):
        raise BadRequest(f"message {number} is no object")
    who = message.get("from", message.get("role"))
    text = message.get("value", message.get("content"))
    if who not in _POLICY | _OTHERS or not isinstance(text, str):
        raise BadRequest(
            f"message {number} is no text from human or gpt: it is from {str(who)[:40]!r}"
        )
    return who in _POLICY, text, message.get("loss")


def _env_of(name: str) -> str:
    """Our id of one of their worlds; their own name where we have no such world."""
    try:
        return full_id(_NAMES.get(name.lower(), name)) if name else ""
    except UnknownEnvironment:
        return name


def _human(text: str) -> dict[str, Any]:
    return {"from": "human", "loss": None, "value": text}


def _gpt(text: str, *, loss: bool) -> dict[str, Any]:
    return {"from": "gpt", "loss": loss, "value": text}
