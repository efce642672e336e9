"""The formats of episodes: trajectories, conversations, messages and DPO pairs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.run_store import BrokenLine
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.episodes import PairRules
from agentgym_train.data.conversations import conversation_row, read_conversation
from agentgym_train.data.files import Row, read_rows
from agentgym_train.data.messages import dpo_row, messages_row, read_messages, read_pair
from agentgym_train.data.pairs import Pair, make_pairs

logger = logging.getLogger(__name__)

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
