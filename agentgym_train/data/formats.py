"""The formats of episodes: trajectories, chat messages, and AgentGym's conversations."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentgym_env.actions import ActionError, action_format
from agentgym_env.errors import AgentGymError, BadRequest, ConfigError, UnknownEnvironment
from agentgym_env.reasoning import reply_of
from agentgym_env.registry import env_class, full_id, registered
from agentgym_env.run_store import BrokenLine
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.data.files import read_rows

logger = logging.getLogger(__name__)

FormatName = Literal["trajectories", "conversations", "messages"]

FORMATS: Final[tuple[str, ...]] = get_args(FormatName)

COLUMN: Final = "agentgym"
"""The column with the rest of an episode, as JSON text: the same type in every row of a dataset."""

_MARKS: Final[dict[str, FormatName]] = {
    "conversations": "conversations",
    "messages": "messages",
    "turns": "trajectories",
}
"""A column that only one format has."""

_NAMING: Final = ("env", "task", "item_id")
"""Columns that may name the environment and the task."""

_POLICY: Final = frozenset({"gpt", "assistant"})

_ACKNOWLEDGEMENT: Final = "OK."

_NUMBERED: Final = re.compile(r"[A-Za-z]+_\d+")

_NAMES: Final = {"searchqa": "search"}
"""AgentGym's names of environments that have another name here."""


@dataclass(slots=True)
class Reading:
    """The episodes of files, and the lines that could not be read."""

    trajectories: list[Trajectory] = field(default_factory=list)
    broken: list[BrokenLine] = field(default_factory=list)

    def add(self, other: Reading) -> None:
        """Add the episodes and lines of another reading."""
        self.trajectories += other.trajectories
        self.broken += other.broken


@dataclass(frozen=True, slots=True)
class _Dialogue:
    """The texts of an episode, in their order."""

    instruction: str
    observation: str
    exchanges: list[tuple[str, str | None]]
    """(response, observation); the observation is None if the texts end before it."""


class _Rest(Struct, frozen=True):
    words: str
    """A digest of the texts, which detects changes of them."""
    episode: Trajectory
    """The episode without the texts."""


def format_named(name: str) -> FormatName:
    """A format by name; raises `ConfigError` with the available names."""
    if name not in FORMATS:
        pairs = "; `method: dpo` trains on pairs that it makes of episodes" if name == "dpo" else ""
        raise ConfigError(f"no format {name!r}; choose from {', '.join(FORMATS)}{pairs}")
    return name  # type: ignore[return-value]


def export_rows(
    trajectories: Sequence[Trajectory], form: FormatName, *, tokens: bool = True
) -> Iterator[dict[str, Any]]:
    """The rows of a file; `tokens` includes the sampled ids, if they are stored."""
    context = sum(not has_loss(turn) for t in trajectories for turn in t.turns)
    if context and form == "messages":
        logger.warning(
            "%d turns are of another policy and only context, which the format messages cannot "
            "say: other libraries would train on them; conversations and trajectories mark them",
            context,
        )
    if not tokens:
        trajectories = [replace(t, tokens=None, further_rows=[]) for t in trajectories]
    makers: dict[FormatName, Callable[[Trajectory], dict[str, Any]]] = {
        "trajectories": msgspec.to_builtins,
        "conversations": _conversations_row,
        "messages": _messages_row,
    }
    return map(makers[form], trajectories)


def read_episodes(path: Path, form: FormatName | None = None, *, env: str = "") -> Reading:
    """The episodes of a file; without a format, the columns of each row determine it.

    `env` is the environment of rows that do not name one.
    """
    rows, broken = read_rows(path)
    reading = Reading(broken=broken)
    for row in rows:
        try:
            reading.trajectories.append(episode_of(row.values, form, env))
        except BadRequest as error:
            reading.broken.append(BrokenLine(path, row.line, str(error)))
    reading.broken.sort(key=lambda broken: broken.line)
    return reading


def episode_of(row: dict[str, Any], form: FormatName | None = None, env: str = "") -> Trajectory:
    """The episode of a row; raises `ConfigError` if there is none."""
    form = form or next((form for mark, form in _MARKS.items() if mark in row), None)
    if form is None:
        raise ConfigError(
            f"its format is unknown: it has none of the columns {', '.join(_MARKS)}, only "
            f"{repr(list(row))[:100]}"
        )
    if form != "trajectories":
        return _read_chat(row, form, env)
    try:
        return msgspec.convert(row, Trajectory)
    except msgspec.ValidationError as error:
        raise ConfigError(f"it is not a trajectory: {error}") from error


def has_loss(turn: Turn) -> bool:
    """Whether a turn is trained on; a file excludes one by `"loss": false`."""
    return turn.info.get("loss") is not False


def item_id(env: str, task: str) -> str:
    """The name that AgentGym gives a task, `textcraft_17`.

    If the environment is not installed, or AgentGym has no number for the task, it consists of the
    environment's name and the task.
    """
    if _NUMBERED.fullmatch(task):
        return task
    name = re.sub(r"-v\d+$", "", env.rpartition("/")[2]).lower()
    return _numbers(env).get(task, f"{name}_{task}")


def _messages_row(trajectory: Trajectory) -> dict[str, Any]:
    """A row of chat messages; the columns beside them are plain values for filtering."""
    messages = [] if not trajectory.instruction else [("system", trajectory.instruction)]
    messages.append(("user", trajectory.observation))
    for response, answer in _dialogue_of(trajectory).exchanges:
        messages.append(("assistant", response))
        if answer is not None:
            messages.append(("user", answer))
    return {
        "messages": [{"role": role, "content": content} for role, content in messages],
        "env": trajectory.env,
        "task": trajectory.task,
        "success": trajectory.success,
        "reward": trajectory.reward,
        COLUMN: _rest_of(trajectory),
    }


def _conversations_row(trajectory: Trajectory) -> dict[str, Any]:
    """A row of AgentGym, whose instruction is a message with an acknowledgement."""
    messages: list[tuple[str, bool | None, str]] = []
    if trajectory.instruction:
        messages += [("human", None, trajectory.instruction), ("gpt", False, _ACKNOWLEDGEMENT)]
    messages.append(("human", None, trajectory.observation))
    exchanges = _dialogue_of(trajectory).exchanges
    for turn, (response, answer) in zip(trajectory.turns, exchanges, strict=True):
        messages.append(("gpt", has_loss(turn), response))
        if answer is not None:
            messages.append(("human", None, answer))
    return {
        "item_id": item_id(trajectory.env, trajectory.task),
        "conversations": [{"from": f, "loss": loss, "value": text} for f, loss, text in messages],
        "reward": trajectory.reward,
        "success": trajectory.success,
        COLUMN: _rest_of(trajectory),
    }


def _dialogue_of(trajectory: Trajectory) -> _Dialogue:
    """The texts of an export: they end with the policy's last response."""
    turns = trajectory.turns
    exchanges: list[tuple[str, str | None]] = [(t.response, t.observation) for t in turns]
    if exchanges:
        exchanges[-1] = (exchanges[-1][0], None)
    return _Dialogue(trajectory.instruction, trajectory.observation, exchanges)


def _rest_of(trajectory: Trajectory) -> str:
    """The column of an episode."""
    last = len(trajectory.turns) - 1
    turns = [
        replace(t, response="", observation=t.observation if i == last else "")
        for i, t in enumerate(trajectory.turns)
    ]
    bare = replace(trajectory, instruction="", observation="", turns=turns)
    return msgspec.json.encode(_Rest(_digest(_dialogue_of(trajectory)), bare)).decode()


def _digest(dialogue: _Dialogue) -> str:
    texts = [dialogue.instruction, dialogue.observation, dialogue.exchanges]
    return hashlib.blake2b(msgspec.json.encode(texts), digest_size=8).hexdigest()


def _read_chat(row: dict[str, Any], column: str, env: str) -> Trajectory:
    """The episode of a row with messages from any source.

    A row with neither `success` nor `reward` is a success, as AgentGym's demonstrations are.
    """
    messages = row.get(column)
    if messages is None and column == "conversations":
        raise ConfigError("it names a task and has no conversation")
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f"its {column} are not a list of messages")
    read = [_read_message(column, number, message) for number, message in enumerate(messages, 1)]
    instruction, read = _instruction_of(read, acknowledged=column == "conversations")
    dialogue = _folded(instruction, ((role in _POLICY, text) for role, text, _ in read))
    if isinstance(row.get(COLUMN), str):
        episode = _restored(dialogue, row[COLUMN])
    else:
        episode = _episode_with(dialogue, row, env)
    losses = [loss for role, _, loss in read if role in _POLICY]
    turns = [_flagged(turn, loss) for turn, loss in zip(episode.turns, losses, strict=True)]
    return replace(episode, turns=turns)


def _read_message(column: str, number: int, message: Any) -> tuple[str, str, Any]:
    """(role, text, `loss`) of a message, in the keys of either format."""
    values = message if isinstance(message, dict) else {}
    role = values.get("from", values.get("role"))
    if not isinstance(role, str):
        raise ConfigError(f"message {number} of its {column} has no role")
    text = values.get("value", values.get("content"))
    if isinstance(text, list):  # blocks, as in multimodal messages
        blocks = [block.get("text") for block in text if isinstance(block, dict)]
        text = "".join(block for block in blocks if isinstance(block, str))
    if not isinstance(text, str):
        raise ConfigError(f"message {number} of its {column} has no text")
    return role, text, values.get("loss")


def _instruction_of(
    messages: list[tuple[str, str, Any]], *, acknowledged: bool
) -> tuple[str, list[tuple[str, str, Any]]]:
    """(the instruction, the messages after it).

    It is a system message, or, where it may be `acknowledged`, a first message that the policy only
    acknowledges.
    """
    by_policy = [role in _POLICY for role, _, _ in messages[:3]]
    if acknowledged and by_policy == [False, True, False]:
        _, acknowledgement, loss = messages[1]
        if loss is False or (loss is None and acknowledgement.lower().startswith("ok")):
            return messages[0][1], messages[2:]
    if messages[0][0] == "system":
        return messages[0][1], messages[1:]
    return "", messages


def _folded(instruction: str, texts: Iterable[tuple[bool, str]]) -> _Dialogue:
    """The dialogue of texts, each with whether it is the policy's.

    Several messages of others between two responses become one.
    """
    opening: list[str] = []
    exchanges: list[tuple[str, str | None]] = []
    for by_policy, text in texts:
        if by_policy:
            if exchanges and exchanges[-1][1] is None:
                exchanges[-1] = (exchanges[-1][0], "")
            exchanges.append((text, None))
        elif not exchanges:
            opening.append(text)
        else:
            response, before = exchanges[-1]
            exchanges[-1] = (response, text if before is None else f"{before}\n\n{text}")
    return _Dialogue(instruction, "\n\n".join(opening), exchanges)


def _restored(dialogue: _Dialogue, column: str) -> Trajectory:
    """The episode of a row of our export; raises `ConfigError` if the column is broken."""
    try:
        found = msgspec.json.decode(column, type=_Rest)
    except (msgspec.DecodeError, TypeError) as error:
        raise ConfigError(f"its column {COLUMN} is broken: {error}") from error
    stored, turns = found.episode, _turns_of(dialogue)
    is_same_length = len(turns) == len(stored.turns)
    if _digest(dialogue) == found.words and is_same_length:
        turns = [
            replace(
                turn,
                response=response,
                observation=turn.observation if answer is None else answer,
            )
            for turn, (response, answer) in zip(stored.turns, dialogue.exchanges, strict=True)
        ]
    else:
        # The texts were edited: they are used, and the sampled tokens no longer belong to them.
        stored = replace(stored, tokens=None, further_rows=[])
        if is_same_length:
            turns = [
                replace(new, reward=old.reward, info=old.info)
                for new, old in zip(turns, stored.turns, strict=True)
            ]
    return replace(
        stored, instruction=dialogue.instruction, observation=dialogue.observation, turns=turns
    )


def _episode_with(dialogue: _Dialogue, row: dict[str, Any], env: str) -> Trajectory:
    """An episode of which only the texts and what the row says of the result are known.

    The last turn gets the reward, by default 1 for a success. Without a task, the task is named
    after the first prompt, so that episodes with the same prompt stay together.
    """
    turns = _turns_of(dialogue)
    if not turns:
        raise ConfigError("it has no response of the policy")
    reward = row.get("reward")
    if reward is not None and not _is_finite(reward):
        raise ConfigError(f"its reward must be a finite number, got {reward!r:.80}")
    if isinstance(row.get("success"), str):
        raise ConfigError(f"its success must be true or false, got {row['success']!r:.80}")
    # AgentGym counts 1 as solved, and 100 in environments that score in percent.
    success = bool(row.get("success", reward is None or reward in (1, 100)))
    turns[-1] = replace(turns[-1], reward=float(success if reward is None else reward))
    named = {name: "" if row.get(name) is None else str(row[name]) for name in _NAMING}
    prompt = _digest(_Dialogue(dialogue.instruction, dialogue.observation, []))
    return Trajectory(
        env=env or named["env"] or _env_of(named["item_id"].rpartition("_")[0]),
        # AgentGym's item ids are aliases of tasks.
        task=named["task"] or named["item_id"] or f"prompt-{prompt}",
        seed=0,
        instruction=dialogue.instruction,
        observation=dialogue.observation,
        turns=turns,
        outcome="success" if success else "failure",
        policy="imported",
        horizon=len(turns),
        success=success,
        score=turns[-1].reward,
    )


def _turns_of(dialogue: _Dialogue) -> list[Turn]:
    return [Turn(text, _action_in(text), answer or "") for text, answer in dialogue.exchanges]


def _action_in(text: str) -> str:
    """Of the text without reasoning, what follows `Action:`, else all; empty if there are two."""
    form = "react" if "Action:" in (reply_of(text) or "") else "plain"
    found = action_format(form).parse(text)
    return "" if isinstance(found, ActionError) else found


def _flagged(turn: Turn, loss: Any) -> Turn:
    """The turn with the `loss` of its message, which may have been edited; None changes nothing."""
    if loss is None:
        return turn
    info = {name: value for name, value in turn.info.items() if name != "loss"}
    return replace(turn, info={**info, "loss": False} if loss is False else info)


@cache
def _numbers(env: str) -> dict[str, str]:
    """Task -> AgentGym's name of it."""
    if env not in {entry.env_id for entry in registered()}:
        return {}  # A file of episodes does not choose what code is imported.
    try:
        known = env_class(env)().tasks.aliases
    except (AgentGymError, ImportError, OSError):
        return {}
    return {task: name for name, task in known.items()}


def _env_of(name: str) -> str:
    """Our id of one of AgentGym's environments; its own name if there is none such here."""
    try:
        return full_id(_NAMES.get(name.lower(), name)) if name else ""
    except UnknownEnvironment:
        return name


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False
