"""Rows of question files: JSON lines, parquet, a Hugging Face dataset; knows nothing of tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from agentgym_env.errors import BadRequest

_SUFFIXES: Final = (".jsonl", ".parquet")
_HUB: Final = "hf:"
_ANSWERS: Final = ("golden_answers", "answers", "answer")


@dataclass(frozen=True, slots=True)
class Row:
    """One question of a file, and where it stands there."""

    where: str
    question: str
    answers: tuple[str, ...]
    id: str | None
    source: str | None
    """Which dataset it comes from, where the file tells."""


def rows_by_split(questions: str) -> Iterator[tuple[str, Iterator[Row]]]:
    """Split -> its rows. A file is one split, named as the file; a folder holds one a file.

    Raises `BadRequest` for a row that is no question, with its place.
    """
    if questions.startswith(_HUB):
        name, _, rest = questions.removeprefix(_HUB).partition(":")
        config, _, split = rest.partition(":")
        hub_splits = import_module("agentgym_servers._search_datasets").hub_splits
        for split_name, values in hub_splits(name, config or None, split or None):
            yield split_name, _rows(f"{name}, {split_name}", "row", values)
        return
    for path in question_files(questions):
        if path.suffix == ".parquet":
            parquet_rows = import_module("agentgym_servers._search_datasets").parquet_rows
            yield path.stem, _rows(str(path), "row", parquet_rows(path))
        else:
            yield path.stem, _rows(str(path), "line", _json_lines(path))


def question_files(questions: str) -> list[Path]:
    """The file itself, or those of a folder by name."""
    path = Path(questions).expanduser()
    found = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in found if file.suffix in _SUFFIXES and file.is_file()]
    if not files:
        raise BadRequest(
            f"there are no questions in {questions}; give a .jsonl or .parquet file, a folder of "
            "them, or hf:NAME of a Hugging Face dataset"
        )
    stems = [file.stem for file in files]
    twice = sorted({stem for stem in stems if stems.count(stem) > 1})
    if twice:
        raise BadRequest(f"{questions} holds the split {twice[0]!r} in two files; keep one")
    return files


def _rows(name: str, unit: str, values: Iterator[tuple[int, Any]]) -> Iterator[Row]:
    for number, value in values:
        yield _row(f"{name}, {unit} {number}", value)


def _row(where: str, value: Any) -> Row:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{where} is {type(value).__name__}, not an object with a question")
    question = value.get("question")
    if not isinstance(question, str) or not question.strip():
        raise BadRequest(f"{where} has no text as its `question`")
    given = next((value[name] for name in _ANSWERS if value.get(name) is not None), None)
    if given is None:
        given = _rewarded(value)
    answers = _texts(given.get("text") if isinstance(given, Mapping) else given)
    if not answers:
        raise BadRequest(f"{where} has no texts as its `golden_answers`")
    id, source = value.get("id"), value.get("data_source")
    return Row(
        where, question.strip(), answers, None if id is None else str(id),
        None if source is None else str(source),
    )  # fmt: skip


def _rewarded(value: Mapping[str, Any]) -> Any:
    """Where Search-R1's own rows keep the answers."""
    inner: Any = value
    for name in ("reward_model", "ground_truth", "target"):
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    return inner


def _texts(given: Any) -> tuple[str, ...]:
    """Answers as texts; empty where one of them is none."""
    listed = given if isinstance(given, list | tuple) else [given]
    kinds_fit = all(isinstance(a, str | int | float) and not isinstance(a, bool) for a in listed)
    texts = tuple(str(answer).strip() for answer in listed) if kinds_fit else ()
    return texts if all(texts) else ()


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield number, _parsed(path, number, line)
    except OSError as error:
        raise BadRequest(f"cannot read the questions {path}: {error.strerror}") from error


def _parsed(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path}, line {number} is not JSON: {error}") from error
