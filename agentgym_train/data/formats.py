"""The formats of episodes: trajectories, chat messages, and AgentGym's conversations."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
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

_MAX_REPORTED: Final = 5
"""Broken lines that are reported one by one."""

_NAMING: Final = ("env", "task", "item_id")
"""Columns that may name the environment and the task."""

_POLICY: Final = frozenset({"gpt", "assistant"})

_ACKNOWLEDGEMENT: Final = "OK."

_NUMBERED: Final = re.compile(r"[A-Za-z]+_\d+")

_LARGEST: Final = sys.float_info.max

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


class _Rest(Struct, frozen=True):
    words: str
    """A digest of the texts, which detects changes of them."""
    episode: Trajectory
    """The episode without the texts."""


def describe_broken(broken: list[BrokenLine]) -> list[str]:
    """Sentences about lines that cannot be read; the rest of a file is used."""
    shown = [
        f"{line.place} cannot be read and is left out: {line.reason}"
        for line in broken[:_MAX_REPORTED]
    ]
    more = len(broken) - len(shown)
    return [*shown, f"{more} more lines cannot be read."] if more else shown


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
    system = [{"role": "system", "content": trajectory.instruction}]
    messages = [
        {"role": "user" if turn is None else "assistant", "content": text}
        for turn, text in _texts_of(trajectory)
    ]
    return {
        "messages": [*(system if trajectory.instruction else []), *messages],
        "env": trajectory.env,
        "task": trajectory.task,
        "success": trajectory.success,
        "reward": trajectory.reward,
        COLUMN: _rest_of(trajectory),
    }


def _conversations_row(trajectory: Trajectory) -> dict[str, Any]:
    """A row of AgentGym, whose instruction is a message with an acknowledgement."""
    told = [
        {"from": "human", "loss": None, "value": trajectory.instruction},
        {"from": "gpt", "loss": False, "value": _ACKNOWLEDGEMENT},
    ]
    messages = [
        {"from": "human", "loss": None, "value": text}
        if turn is None
        else {"from": "gpt", "loss": has_loss(turn), "value": text}
        for turn, text in _texts_of(trajectory)
    ]
    return {
        "item_id": item_id(trajectory.env, trajectory.task),
        "conversations": [*(told if trajectory.instruction else []), *messages],
        "reward": trajectory.reward,
        "success": trajectory.success,
        COLUMN: _rest_of(trajectory),
    }


def _texts_of(trajectory: Trajectory) -> Iterator[tuple[Turn | None, str]]:
    """The texts of an export, each with its turn if it is the policy's; the last one is."""
    text = trajectory.observation
    for turn in trajectory.turns:
        yield None, text
        yield turn, turn.response
        text = turn.observation
    if not trajectory.turns:
        yield None, text


def _rest_of(trajectory: Trajectory) -> str:
    """The column of an episode."""
    last = len(trajectory.turns) - 1
    turns = [
        replace(t, response="", observation=t.observation if i == last else "")
        for i, t in enumerate(trajectory.turns)
    ]
    bare = replace(trajectory, instruction="", observation="", turns=turns)
    digest = _digest(trajectory.instruction, trajectory.observation, trajectory.turns)
    return msgspec.json.encode(_Rest(digest, bare)).decode()


def _digest(instruction: str, observation: str, turns: Sequence[Turn]) -> str:
    """A digest of the texts of an export."""
    texts: list[tuple[str, str | None]] = [(t.response, t.observation) for t in turns[:-1]]
    texts += [(t.response, None) for t in turns[-1:]]
    encoded = msgspec.json.encode([instruction, observation, texts])
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


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
    told = (instruction, *_folded(read))
    rest = row.get(COLUMN)
    episode = _restored(rest, *told) if isinstance(rest, str) else _episode_with(row, env, *told)
    losses = [loss for role, _, loss in read if role in _POLICY]
    turns = [_flagged(turn, loss) for turn, loss in zip(episode.turns, losses, strict=True)]
    return replace(episode, turns=turns)


def _read_message(column: str, number: int, message: Any) -> tuple[str, str, Any]:
    """(role, text, `loss`) of a message, in the keys of either format."""
    values = message if isinstance(message, dict) else {}
    role = values.get("from", values.get("role"))
    if not isinstance(role, str):
        raise ConfigError(f"message {number} of its {column} has no role")
    if values.get("tool_calls"):
        raise ConfigError(f"message {number} of its {column} calls tools, which are not read")
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


def _folded(messages: Sequence[tuple[str, str, Any]]) -> tuple[str, list[Turn]]:
    """(the first observation, the turns). Several messages of others at once become one."""
    opening: list[str] = []
    turns: list[Turn] = []
    for role, text, _ in messages:
        if role in _POLICY:
            turns.append(Turn(text, _action_in(text), ""))
        elif turns:
            before = turns[-1].observation
            turns[-1] = replace(turns[-1], observation=f"{before}\n\n{text}" if before else text)
        else:
            opening.append(text)
    return "\n\n".join(opening), turns


def _restored(column: str, instruction: str, observation: str, turns: list[Turn]) -> Trajectory:
    """The episode of a row of our export; raises `ConfigError` if the column is broken."""
    try:
        found = msgspec.json.decode(column, type=_Rest)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"its column {COLUMN} is broken: {error}") from error
    stored, is_same_length = found.episode, len(turns) == len(found.episode.turns)
    is_same = is_same_length and _digest(instruction, observation, turns) == found.words
    if not is_same:
        # The texts were edited: they are used, and the sampled tokens no longer belong to them.
        stored = replace(stored, tokens=None, further_rows=[])
    if is_same_length:
        turns = [
            replace(
                old,
                response=new.response,
                action=old.action if is_same else new.action,
                observation=new.observation or old.observation,
            )
            for new, old in zip(turns, stored.turns, strict=True)
        ]
    return replace(stored, instruction=instruction, observation=observation, turns=turns)


def _episode_with(
    row: dict[str, Any], env: str, instruction: str, observation: str, turns: list[Turn]
) -> Trajectory:
    """An episode of which only the texts and what the row says of the result are known.

    The last turn gets the reward, by default 1 for a success. Without a task, the task is named
    after the first prompt, so that episodes with the same prompt stay together.
    """
    if not turns:
        raise ConfigError("it has no response of the policy")
    reward = row.get("reward")
    if reward is not None and not (isinstance(reward, int | float) and abs(reward) <= _LARGEST):
        raise ConfigError(f"its reward must be a finite number, got {reward!r:.80}")
    if isinstance(row.get("success"), str):
        raise ConfigError(f"its success must be true or false, got {row['success']!r:.80}")
    # AgentGym counts 1 as solved, and 100 in environments that score in percent.
    success = bool(row.get("success", reward is None or reward in (1, 100)))
    score = float(success if reward is None else reward)
    named = {name: "" if row.get(name) is None else str(row[name]) for name in _NAMING}
    return Trajectory(
        env=env or named["env"] or _env_of(named["item_id"].rpartition("_")[0]),
        # AgentGym's item ids are aliases of tasks.
        task=named["task"] or named["item_id"] or f"prompt-{_digest(instruction, observation, [])}",
        seed=0,
        instruction=instruction,
        observation=observation,
        turns=[*turns[:-1], replace(turns[-1], reward=score)],
        outcome="success" if success else "failure",
        policy="imported",
        horizon=len(turns),
        success=success,
        score=score,
    )


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
