"""Reads and writes episodes as trajectories, conversations, messages or DPO pairs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from agentgym_env.actions import ActionError, action_format
from agentgym_env.errors import AgentGymError, BadRequest, ConfigError, UnknownEnvironment
from agentgym_env.registration import env_class, full_id, registered
from agentgym_env.run_store import BrokenLine
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.config.values import PairRules
from agentgym_train.data.pairs import Pair, make_pairs

COLUMN: Final = "agentgym"

"""The column with the rest of an episode, as a JSON text: one type in every row of a data set."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What was said, in its order."""

    instruction: str
    observation: str
    exchanges: list[tuple[str, str | None]]
    """The policy's words, and what it was answered; None where the texts end before."""


class _Rest(Struct, frozen=True):
    words: str
    """A digest of the texts, by which a change of them is seen."""
    episode: Trajectory
    """The episode without the texts."""


def dialogue_of(trajectory: Trajectory) -> Dialogue:
    """The texts that another program is given: they end with the policy's last words."""
    turns = trajectory.turns
    exchanges: list[tuple[str, str | None]] = [(t.response, t.observation) for t in turns]
    if exchanges:
        exchanges[-1] = (exchanges[-1][0], None)
    return Dialogue(trajectory.instruction, trajectory.observation, exchanges)


def folded(instruction: str, spoken: Iterable[tuple[bool, str]]) -> Dialogue:
    """The dialogue of texts, each with whether the policy says it.

    What others say in several messages before the policy's next words becomes one.
    """
    opening: list[str] = []
    exchanges: list[tuple[str, str | None]] = []
    for by_policy, text in spoken:
        if by_policy:
            if exchanges and exchanges[-1][1] is None:
                exchanges[-1] = (exchanges[-1][0], "")
            exchanges.append((text, None))
        elif not exchanges:
            opening.append(text)
        else:
            words, before = exchanges[-1]
            exchanges[-1] = (words, text if before is None else f"{before}\n\n{text}")
    return Dialogue(instruction, "\n\n".join(opening), exchanges)


def rest_of(trajectory: Trajectory, *, tokens: bool = True) -> str:
    """The column for an episode; `tokens` are the ids as they were sampled, if there are any."""
    last = len(trajectory.turns) - 1
    turns = [
        msgspec.structs.replace(t, response="", observation=t.observation if i == last else "")
        for i, t in enumerate(trajectory.turns)
    ]
    bare = msgspec.structs.replace(trajectory, instruction="", observation="", turns=turns)
    if not tokens:
        bare = msgspec.structs.replace(bare, tokens=None, further_rows=[])
    return msgspec.json.encode(_Rest(_digest(dialogue_of(trajectory)), bare)).decode()


def restored(dialogue: Dialogue, column: str) -> Trajectory:
    """The episode of a row that we wrote; raises `ConfigError` where the column is broken."""
    try:
        rest = msgspec.json.decode(column, type=_Rest)
    except (msgspec.DecodeError, TypeError) as error:
        raise ConfigError(f"its column {COLUMN} is broken: {error}") from error
    kept = rest.episode
    if _digest(dialogue) == rest.words and len(dialogue.exchanges) == len(kept.turns):
        turns = [
            msgspec.structs.replace(
                turn, response=words, observation=turn.observation if answer is None else answer
            )
            for turn, (words, answer) in zip(kept.turns, dialogue.exchanges, strict=True)
        ]
        return _with_texts(kept, dialogue, turns)
    # Somebody changed the texts: they count, and what was sampled is no longer what is there.
    kept = msgspec.structs.replace(kept, tokens=None, further_rows=[])
    turns = turns_of(dialogue)
    if len(turns) == len(kept.turns):
        turns = [
            msgspec.structs.replace(new, reward=old.reward, info=old.info)
            for new, old in zip(turns, kept.turns, strict=True)
        ]
    return _with_texts(kept, dialogue, turns)


def made_of(
    dialogue: Dialogue,
    *,
    env: str,
    task: str = "",
    success: bool = True,
    reward: float | None = None,
    infos: list[dict[str, Any]] | None = None,
) -> Trajectory:
    """An episode of which nothing but its texts and its end is known.

    Its reward, by default 1 for a success, is paid for the last turn. Without a task it is called
    after its first prompt, so that episodes that began alike stay together.
    """
    turns = turns_of(dialogue)
    if not turns:
        raise ConfigError("the policy says nothing in it")
    infos = infos or [{} for _ in turns]
    turns = [
        msgspec.structs.replace(turn, info=info) for turn, info in zip(turns, infos, strict=True)
    ]
    paid = float(success) if reward is None else reward
    turns[-1] = msgspec.structs.replace(turns[-1], reward=paid)
    return Trajectory(
        env=env,
        task=task or "prompt-" + _digest(Dialogue(dialogue.instruction, dialogue.observation, [])),
        seed=0,
        instruction=dialogue.instruction,
        observation=dialogue.observation,
        turns=turns,
        outcome="success" if success else "failure",
        policy="imported",
        horizon=len(turns),
        success=success,
        score=paid,
    )


def turns_of(dialogue: Dialogue) -> list[Turn]:
    """The turns that the texts tell of."""
    return [Turn(words, _action_in(words), answer or "") for words, answer in dialogue.exchanges]


def _action_in(words: str) -> str:
    """What follows `Action:` where the text has one, else all of it; empty where it has two."""
    if "Action:" not in words:
        return words.strip()
    found = action_format("react").parse(words)
    return "" if isinstance(found, ActionError) else found


def _with_texts(episode: Trajectory, dialogue: Dialogue, turns: list[Turn]) -> Trajectory:
    return msgspec.structs.replace(
        episode, instruction=dialogue.instruction, observation=dialogue.observation, turns=turns
    )


def _digest(dialogue: Dialogue) -> str:
    texts = [dialogue.instruction, dialogue.observation, dialogue.exchanges]
    return hashlib.blake2b(msgspec.json.encode(texts), digest_size=8).hexdigest()


_ACKNOWLEDGEMENT: Final = "OK."

_POLICY: Final = frozenset({"gpt", "assistant"})

_OTHERS: Final = frozenset({"human", "user", "system"})

_NUMBERED: Final = re.compile(r"[A-Za-z]+_\d+")

_NAMES: Final = {"searchqa": "search"}

"""Their worlds whose name here is another."""


def conversation_row(trajectory: Trajectory, *, tokens: bool = True) -> dict[str, Any]:
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


def read_conversation(row: dict[str, Any], env: str = "") -> Trajectory:
    """The episode of a row, ours or theirs; raises `ConfigError` where there is none.

    A row of theirs that says nothing of its reward is taken for a success, as their
    demonstrations are. `env` is the environment of rows that do not name one.
    """
    messages = row.get("conversations")
    if messages is None:
        raise ConfigError("it names a task and has no conversation")
    if not isinstance(messages, list) or not messages:
        raise ConfigError("its conversations are no list of messages")
    spoken = [_spoken(number, message) for number, message in enumerate(messages, 1)]
    dialogue, losses = _dialogue(spoken)
    if isinstance(row.get(COLUMN), str):
        return restored(dialogue, row[COLUMN])
    item = str(row.get("item_id", ""))
    reward = row.get("reward")
    if reward is not None and not isinstance(reward, int | float):
        raise ConfigError(f"its reward is no number, got {reward!r}")
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
        raise ConfigError(f"message {number} is no object")
    who = message.get("from", message.get("role"))
    text = message.get("value", message.get("content"))
    if who not in _POLICY | _OTHERS or not isinstance(text, str):
        raise ConfigError(
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


@dataclass(frozen=True, slots=True)
class Row:
    """One object of a file."""

    path: Path
    line: int
    """Where it begins, counted from 1."""
    values: dict[str, Any]


def read_rows(path: Path) -> tuple[list[Row], list[BrokenLine]]:
    """The objects of a file; raises `ConfigError` where there is none to read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    found = list(_array(path, data) if data.lstrip()[:1] == b"[" else _lines(path, data))
    rows = [item for item in found if isinstance(item, Row)]
    return rows, [item for item in found if isinstance(item, BrokenLine)]


def _lines(path: Path, data: bytes) -> Iterator[Row | BrokenLine]:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = _decoded(line)
        except ValueError as error:
            yield BrokenLine(path, number, str(error))
        else:
            yield _row(path, number, value)


def _array(path: Path, data: bytes) -> Iterator[Row | BrokenLine]:
    """The elements of an array.

    After one that is broken it goes on at the next line that begins as the first element's does.
    """
    text = data.decode("utf-8", errors="surrogateescape")
    decoder = json.JSONDecoder()
    at, line, seen = _skip(text, text.index("[") + 1), 1, 0
    again = re.compile("^" + re.escape(_indent(text, at)) + r"(?=\{)", re.MULTILINE)
    while at < len(text) and text[at] != "]":
        line, seen = line + text.count("\n", seen, at), at
        try:
            _, end = decoder.raw_decode(text, at)
            # Read once more, so that a line and an element are held to the same rules.
            value = _decoded(text[at:end].encode("utf-8", errors="surrogateescape"))
            end = _after_comma(text, end)
        except ValueError as error:
            yield BrokenLine(path, line, str(error))
            following = again.search(text, at + 1)
            if following is None:
                return
            at = following.end()
            continue
        yield _row(path, line, value)
        at = end
    if at >= len(text):
        yield BrokenLine(path, line + text.count("\n", seen), "the array is cut off")


def _decoded(data: bytes) -> Any:
    """A value; raises `ValueError`, of which msgspec's and Unicode's own errors are kinds."""
    return msgspec.json.decode(data)


def _row(path: Path, line: int, value: Any) -> Row | BrokenLine:
    if isinstance(value, dict):
        return Row(path, line, value)
    return BrokenLine(path, line, f"is no object, but {json.dumps(value)[:60]}")


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    if at < len(text) and text[at] not in ",]":
        raise ValueError(f"expected a comma after an element, got {text[at]!r}")
    return _skip(text, at + 1) if text[at : at + 1] == "," else at


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _indent(text: str, at: int) -> str:
    """What stands before a place on its line; nothing where that is no space."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return "" if before.strip() else before


Messages = list[dict[str, str]]


def messages_row(trajectory: Trajectory, *, tokens: bool = True) -> dict[str, Any]:
    """One episode; the columns beside `messages` are plain values, to filter by."""
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
    """The episode of a row, ours or another's; raises `ConfigError` where there is none.

    A row of another's is taken for a success unless it has a `success` that says otherwise.
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


def prompt_of(dialogue: Dialogue) -> Messages:
    """What the policy is told before its first turn."""
    system = [_message("system", dialogue.instruction)] if dialogue.instruction else []
    return [*system, _message("user", dialogue.observation)]


def completion_of(dialogue: Dialogue) -> Messages:
    """The rest, from the policy's first words to its last."""
    messages = []
    for words, answer in dialogue.exchanges:
        messages.append(_message("assistant", words))
        if answer is not None:
            messages.append(_message("user", answer))
    return messages


def dialogue_in(messages: Any, column: str) -> Dialogue:
    """The texts of a list of messages; raises `ConfigError` where it is none."""
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f"its {column} are no list of messages")
    spoken = [
        _spoken_of_messages(column, number, message) for number, message in enumerate(messages, 1)
    ]
    system = [spoken.pop(0)[1]] if spoken[0][0] == "system" else []
    return folded("".join(system), ((role == "assistant", text) for role, text in spoken))


def _spoken_of_messages(column: str, number: int, message: Any) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ConfigError(f"message {number} of its {column} has no role")
    text = message.get("content")
    if isinstance(text, list):  # blocks, as of models that also see pictures
        text = "".join(b["text"] for b in text if isinstance(b, dict) and "text" in b)
    if not isinstance(text, str):
        raise ConfigError(f"message {number} of its {column} has no text")
    return message["role"], text


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


SIDES: Final = ("chosen", "rejected")


def preference_row(pair: Pair, *, tokens: bool = True) -> dict[str, Any]:
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


def read_preference(row: dict[str, Any], env: str = "") -> Pair:
    """The pair of a row, ours or another's; raises `ConfigError` where there is none.

    Of another's nothing is known but which is better: its chosen episode is taken for a success,
    its rejected one for a failure.
    """
    return Pair(_side(row, "chosen", env), _side(row, "rejected", env))


def _side(row: dict[str, Any], side: str, env: str) -> Trajectory:
    prompt, rest = (_messages(row.get(name)) for name in ("prompt", side))
    dialogue = dialogue_in([*prompt, *rest], f"prompt and {side}")
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


FormatName = Literal["trajectories", "conversations", "messages", "dpo"]

FORMATS: Final[tuple[str, ...]] = get_args(FormatName)

_MARKS: Final = {
    "conversations": "conversations",
    "messages": "messages",
    "chosen": "dpo",
    "turns": "trajectories",
}

"""A column that only one format has."""


@dataclass(slots=True)
class Reading:
    """What was found in files."""

    trajectories: list[Trajectory] = field(default_factory=list)
    broken: list[BrokenLine] = field(default_factory=list)

    def add(self, other: Reading) -> None:
        """Take in another's."""
        self.trajectories += other.trajectories
        self.broken += other.broken


def format_named(name: str) -> FormatName:
    """A format by its name; raises `ConfigError` with the names there are."""
    if name not in FORMATS:
        raise ConfigError(f"no format {name!r}; choose from {', '.join(FORMATS)}")
    return name  # type: ignore[return-value]


def rows_of(
    trajectories: Sequence[Trajectory],
    form: FormatName,
    *,
    rules: PairRules | None = None,
    tokens: bool = True,
) -> Iterator[dict[str, Any]]:
    """The rows of a file; `rules` are of dpo, where a row is a pair."""
    match form:
        case "conversations":
            return (conversation_row(t, tokens=tokens) for t in trajectories)
        case "messages":
            return (messages_row(t, tokens=tokens) for t in trajectories)
        case "dpo":
            return (preference_row(p, tokens=tokens) for p in make_pairs(trajectories, rules))
        case "trajectories":
            bare: dict[str, Any] = {} if tokens else {"tokens": None, "further_rows": []}
            return (msgspec.to_builtins(msgspec.structs.replace(t, **bare)) for t in trajectories)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write a file: an array where it is called `.json`, else one row a line. The number of rows.

    Both have a row on a line of its own, so that a line that gets broken spoils no other.
    """
    array = path.suffix == ".json"
    first, between, last = (b"[\n", b",\n", b"\n]\n") if array else (b"", b"\n", b"\n")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} to write {path.name} to")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    number = 0
    try:
        with partial.open("wb") as file:
            for row in rows:
                file.write((between if number else first) + msgspec.json.encode(row))
                number += 1
            file.write(last if number else first + last.lstrip(b"\n"))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return number


def read_episodes(path: Path, form: FormatName | None = None, *, env: str = "") -> Reading:
    """The episodes of a file; without a format each row is read by the columns it has.

    An episode that several pairs share is there once.
    """
    rows, broken = read_rows(path)
    reading = Reading(broken=broken)
    paired: set[bytes] = set()
    for row in rows:
        try:
            found = _read(row, form, env)
        except BadRequest as error:
            reading.broken.append(BrokenLine(path, row.line, str(error)))
            continue
        if isinstance(found, Trajectory):
            reading.trajectories.append(found)
            continue
        for trajectory in (found.chosen, found.rejected):
            key = msgspec.json.encode(trajectory)
            if key not in paired:
                paired.add(key)
                reading.trajectories.append(trajectory)
    reading.broken.sort(key=lambda broken: broken.line)
    return reading


def _read(row: Row, form: FormatName | None, env: str) -> Trajectory | Pair:
    form = form or _form_of(row.values)
    match form:
        case "conversations":
            return read_conversation(row.values, env)
        case "messages":
            return read_messages(row.values, env)
        case "dpo":
            return read_preference(row.values, env)
        case "trajectories":
            try:
                return msgspec.convert(row.values, Trajectory)
            except msgspec.ValidationError as error:
                raise ConfigError(f"it is no trajectory: {error}") from error


def _form_of(values: dict[str, Any]) -> FormatName:
    for mark, form in _MARKS.items():
        if mark in values:
            return form  # type: ignore[return-value]
    raise ConfigError(
        f"it is in no known format: none of its columns is {', '.join(_MARKS)}; it has "
        f"{repr(list(values))[:100]}"
    )
