"""Reads and writes episodes as trajectories, conversations, messages or DPO pairs."""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
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
from agentgym_env.reasoning import reply_of
from agentgym_env.registry import env_class, full_id, registered
from agentgym_env.run_store import BrokenLine
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.config.values import PairRules
from agentgym_train.data.pairs import Pair, make_pairs

COLUMN: Final = "agentgym"
"""The column with the rest of an episode, as JSON text: the same type in every row of a dataset."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dialogue:
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


def dialogue_of(trajectory: Trajectory) -> Dialogue:
    """The texts of an export: they end with the policy's last response."""
    turns = trajectory.turns
    exchanges: list[tuple[str, str | None]] = [(t.response, t.observation) for t in turns]
    if exchanges:
        exchanges[-1] = (exchanges[-1][0], None)
    return Dialogue(trajectory.instruction, trajectory.observation, exchanges)


def folded(instruction: str, texts: Iterable[tuple[bool, str]]) -> Dialogue:
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
    return Dialogue(instruction, "\n\n".join(opening), exchanges)


def rest_of(trajectory: Trajectory, *, tokens: bool = True) -> str:
    """The column of an episode; `tokens` includes the sampled ids, if they are stored."""
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
    """The episode of a row of our export; raises `ConfigError` if the column is broken."""
    try:
        found = msgspec.json.decode(column, type=_Rest)
    except (msgspec.DecodeError, TypeError) as error:
        raise ConfigError(f"its column {COLUMN} is broken: {error}") from error
    stored = found.episode
    if _digest(dialogue) == found.words and len(dialogue.exchanges) == len(stored.turns):
        turns = [
            msgspec.structs.replace(
                turn,
                response=response,
                observation=turn.observation if answer is None else answer,
            )
            for turn, (response, answer) in zip(stored.turns, dialogue.exchanges, strict=True)
        ]
        return _with_texts(stored, dialogue, turns)
    # The texts were edited: they are used, and the sampled tokens no longer belong to them.
    stored = msgspec.structs.replace(stored, tokens=None, further_rows=[])
    turns = turns_of(dialogue)
    if len(turns) == len(stored.turns):
        turns = [
            msgspec.structs.replace(new, reward=old.reward, info=old.info)
            for new, old in zip(turns, stored.turns, strict=True)
        ]
    return _with_texts(stored, dialogue, turns)


def made_of(
    dialogue: Dialogue,
    *,
    env: str,
    task: str = "",
    success: bool = True,
    reward: float | None = None,
    infos: list[dict[str, Any]] | None = None,
) -> Trajectory:
    """An episode of which only the texts and the result are known.

    The last turn gets the reward, by default 1 for a success. Without a task, the task is named
    after the first prompt, so that episodes with the same prompt stay together.
    """
    turns = turns_of(dialogue)
    if not turns:
        raise ConfigError("it has no response of the policy")
    infos = infos or [{} for _ in turns]
    turns = [
        msgspec.structs.replace(turn, info=info) for turn, info in zip(turns, infos, strict=True)
    ]
    total = float(success) if reward is None else reward
    turns[-1] = msgspec.structs.replace(turns[-1], reward=total)
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
        score=total,
    )


def turns_of(dialogue: Dialogue) -> list[Turn]:
    """The turns of a dialogue."""
    return [Turn(text, _action_in(text), answer or "") for text, answer in dialogue.exchanges]


def _action_in(text: str) -> str:
    """Of the text without reasoning, what follows `Action:`, else all; empty if there are two."""
    form = "react" if "Action:" in (reply_of(text) or "") else "plain"
    found = action_format(form).parse(text)
    return "" if isinstance(found, ActionError) else found


def _with_losses(episode: Trajectory, losses: Sequence[bool | None]) -> Trajectory:
    """The episode with the row's own flags, which may have been edited."""
    turns = []
    for turn, loss in zip(episode.turns, losses, strict=True):
        info = {name: value for name, value in turn.info.items() if name != "loss"}
        info = {**info, "loss": False} if loss is False else info
        turns.append(msgspec.structs.replace(turn, info=info))
    return msgspec.structs.replace(episode, turns=turns)


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


@dataclass(frozen=True, slots=True)
class Row:
    """One object of a file."""

    path: Path
    line: int
    """Its first line, counted from 1."""
    values: dict[str, Any]


def read_rows(path: Path) -> tuple[list[Row], list[BrokenLine]]:
    """The objects of a file; raises `ConfigError` if it cannot be read."""
    if path.suffix.lower() == ".parquet":
        from agentgym_train.data.parquet import parquet_rows

        return [Row(path, n, values) for n, values in enumerate(parquet_rows(path), 1)], []
    try:
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
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

    After a broken element, it continues at the next line that begins like the first element.
    """
    text = data.decode("utf-8", errors="surrogateescape")
    decoder = json.JSONDecoder()
    at, line, seen = _skip(text, text.index("[") + 1), 1, 0
    again = re.compile("^" + re.escape(_indent(text, at)) + r"(?=\{)", re.MULTILINE)
    while at < len(text) and text[at] != "]":
        line, seen = line + text.count("\n", seen, at), at
        try:
            _, end = decoder.raw_decode(text, at)
            # Decoded again, so that the same rules apply to a line and an element.
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
    line += text.count("\n", seen, at)
    if at >= len(text):
        yield BrokenLine(path, line, "the array is cut off")
    elif text[at + 1 :].strip():
        yield BrokenLine(path, line, "what follows the array is not read")


def _decoded(data: bytes) -> Any:
    """Decode a value; raises `ValueError`, the base of msgspec's and Unicode's errors."""
    return msgspec.json.decode(data)


def _row(path: Path, line: int, value: Any) -> Row | BrokenLine:
    if isinstance(value, dict):
        return Row(path, line, value)
    return BrokenLine(path, line, f"is not an object, but {json.dumps(value)[:60]}")


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
    """The whitespace before a position on its line; empty if there is other text."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return "" if before.strip() else before


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


SIDES: Final = ("chosen", "rejected")


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
    """The episodes of files, and the lines that could not be read."""

    trajectories: list[Trajectory] = field(default_factory=list)
    broken: list[BrokenLine] = field(default_factory=list)

    def add(self, other: Reading) -> None:
        """Add the episodes and lines of another reading."""
        self.trajectories += other.trajectories
        self.broken += other.broken


ENDINGS: Final = (".jsonl", ".json", ".parquet")

"""The files that episodes are written to and read from."""


def format_named(name: str) -> FormatName:
    """A format by name; raises `ConfigError` with the available names."""
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
    """The rows of a file; `rules` are for dpo, where a row is a pair."""
    context = sum(not turn.info.get("loss", True) for t in trajectories for turn in t.turns)
    if context and form in ("messages", "dpo"):
        logger.warning(
            "%d turns are of another policy and only context, which the format %s cannot say: "
            "other libraries would train on them; conversations and trajectories mark them",
            context, form,
        )  # fmt: skip
    match form:
        case "conversations":
            return (conversation_row(t, tokens=tokens) for t in trajectories)
        case "messages":
            return (messages_row(t, tokens=tokens) for t in trajectories)
        case "dpo":
            return (dpo_row(p, tokens=tokens) for p in make_pairs(trajectories, rules))
        case "trajectories":
            bare: dict[str, Any] = {} if tokens else {"tokens": None, "further_rows": []}
            return (msgspec.to_builtins(msgspec.structs.replace(t, **bare)) for t in trajectories)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write a file in the format of its ending. Returns the number of rows.

    In `.json` (an array) and `.jsonl`, each row has a line of its own, so that a broken line does
    not affect others.
    """
    kind = path.suffix.lower()
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {path.name}: the folder {path.parent} does not exist")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        if kind == ".parquet":
            from agentgym_train.data.parquet import write_parquet

            number = write_parquet(partial, rows)
        else:
            number = _write_lines(partial, rows, array=kind == ".json")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return number


def _write_lines(path: Path, rows: Iterable[dict[str, Any]], *, array: bool) -> int:
    first, between, last = (b"[\n", b",\n", b"\n]\n") if array else (b"", b"\n", b"\n")
    number = 0
    with path.open("wb") as file:
        for row in rows:
            file.write((between if number else first) + msgspec.json.encode(row))
            number += 1
        file.write(last if number else first + last.lstrip(b"\n"))
    return number


def read_episodes(path: Path, form: FormatName | None = None, *, env: str = "") -> Reading:
    """The episodes of a file; without a format, the columns of each row determine it.

    An episode that several pairs share is returned once.
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
            return read_pair(row.values, env)
        case "trajectories":
            try:
                return msgspec.convert(row.values, Trajectory)
            except msgspec.ValidationError as error:
                raise ConfigError(f"it is not a trajectory: {error}") from error


def _form_of(values: dict[str, Any]) -> FormatName:
    for mark, form in _MARKS.items():
        if mark in values:
            return form  # type: ignore[return-value]
    raise ConfigError(
        f"its format is unknown: it has none of the columns {', '.join(_MARKS)}, only "
        f"{repr(list(values))[:100]}"
    )
