"""The questions of the search world with their answers, as tasks in splits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from agentgym_env.errors import BadRequest
from agentgym_env.text_env import TaskSet
from agentgym_servers.worlds.paper import paper_selections
from agentgym_servers.worlds.search.corpora import Question, SearchWorld

_SUFFIXES: Final = (".jsonl", ".parquet")

_HUB: Final = "hf:"

_ANSWERS: Final = ("golden_answers", "answers", "answer", "possible_answers")

_ALIASES: Final = ("text", "value", "aliases", "normalized_value", "normalized_aliases")
"""Where SQuAD and TriviaQA have the texts of an answer that is an object."""


@dataclass(frozen=True, slots=True)
class Row:
    """One question of a file, and its place there."""

    where: str
    question: str
    answers: tuple[str, ...]
    id: str | None
    source: str | None
    """Which dataset it comes from, if the file states it."""


def rows_by_split(questions: str) -> Iterator[tuple[str, Iterator[Row]]]:
    """Split -> its rows. A file is one split, named as the file; a folder contains one per file.

    Raises `BadRequest` for a row that is no question, with its place.
    """
    if questions.startswith(_HUB):
        name, _, rest = questions.removeprefix(_HUB).partition(":")
        config, _, split = rest.partition(":")
        hub_splits = import_module("agentgym_servers.worlds.search.parquet").hub_splits
        for split_name, values in hub_splits(name, config or None, split or None):
            yield split_name, _rows(f"{name}, {split_name}", "row", values)
        return
    for path in question_files(questions):
        if path.suffix == ".parquet":
            parquet_rows = import_module("agentgym_servers.worlds.search.parquet").parquet_rows
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
        raise BadRequest(f"{questions} contains the split {twice[0]!r} in two files; keep one")
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
    name = next((name for name in _ANSWERS if value.get(name) is not None), None)
    given = _rewarded(value) if name is None else value[name]
    if name == "possible_answers" and isinstance(given, str):  # PopQA has a list as JSON text
        given = _parsed_answers(where, given)
    # MuSiQue has further right answers in a column of their own.
    answers = _texts([given, value.get("answer_aliases") or []])
    if not answers:
        raise BadRequest(
            f"{where} has no texts as its `{name or _ANSWERS[0]}`, got {str(given)[:80]}; give a "
            "text, a list of texts, or an object with `text` or `aliases`"
        )
    id, source = value.get("id"), value.get("data_source")
    return Row(
        where, question.strip(), answers, None if id is None else str(id),
        None if source is None else str(source),
    )  # fmt: skip


def _rewarded(value: Mapping[str, Any]) -> Any:
    """The place of the answers in Search-R1's own rows."""
    inner: Any = value
    for name in ("reward_model", "ground_truth", "target"):
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    return inner


def _texts(given: Any) -> tuple[str, ...]:
    """Answers as texts, each once; empty where one of them is none."""
    listed = list(_flat(given))
    kinds_fit = all(isinstance(a, str | int | float) and not isinstance(a, bool) for a in listed)
    texts = tuple(dict.fromkeys(str(a).strip() for a in listed)) if kinds_fit else ()
    return texts if all(texts) else ()


def _flat(given: Any) -> Iterator[Any]:
    """The single answers of a list, or of an object as SQuAD and TriviaQA write it."""
    if isinstance(given, Mapping):
        # Without the texts it is an answer that is none.
        found = [given[name] for name in _ALIASES if given.get(name)]
        given = found or [None]
    if not isinstance(given, list | tuple):
        yield given
        return
    for one in given:
        yield from _flat(one)


def _parsed_answers(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{where} has `possible_answers` that are no JSON: {error}") from error


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


_SEARCH_R1: Final = "searchr1:"

ORIGINAL_NUMBERS: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    "test": {
        "nq": (0, 3_610), "triviaqa": (3_610, 14_923), "popqa": (14_923, 29_190),
        "hotpotqa": (29_190, 36_595), "2wikimultihopqa": (36_595, 49_171),
        "musique": (49_171, 51_588), "bamboogle": (51_588, 51_713),
    },
    "train": {"nq": (51_713, 130_881), "hotpotqa": (130_881, 221_328)},
}  # fmt: skip
"""Split -> source -> AgentGym's first number of its questions, and the one after the last."""


class Item(NamedTuple):
    """A question and every right answer."""

    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Tasks, and what each of them asks."""

    tasks: TaskSet
    items: Mapping[str, Item]
    sources: Mapping[str, Question] = field(default_factory=dict)
    """The questions of a corpus as they are in its file, with the expert's searches."""


def world_questions(world: SearchWorld) -> QuestionSet:
    """The questions of a world that comes with the package."""
    by_split = {
        split: {q.id: (Item(q.text, tuple(q.answers)), q.category) for q in questions}
        for split, questions in world.questions.items()
    }
    sources = {q.id: q for questions in world.questions.values() for q in questions}
    return replace(_question_set(by_split, numbered(by_split)), sources=sources)


def read_questions(questions: str) -> QuestionSet:
    """The questions of files, or of a Hugging Face dataset; raises `BadRequest`."""
    if questions.startswith(_SEARCH_R1):
        return _search_r1(questions.removeprefix(_SEARCH_R1))
    by_split: dict[str, dict[str, tuple[Item, str | None]]] = {}
    for split, rows in rows_by_split(questions):
        by_split[split] = {}
        seen: dict[str, str] = {}
        for number, row in enumerate(rows):
            task = f"{split}/{number if row.id is None else row.id}"
            if task in seen:
                raise BadRequest(
                    f"{row.where} has the id of {seen[task]}; give every question its own, or none"
                )
            seen[task] = row.where
            by_split[split][task] = (Item(row.question, row.answers), row.source)
    if not any(by_split.values()):
        raise BadRequest(f"{questions} contains no questions")
    return _question_set(by_split, numbered(by_split))


def numbered(splits: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """AgentGym's kind of names, `searchqa_N`: the test split is counted first, as it does."""
    order = sorted(splits, key=lambda split: split != "test")
    tasks = [task for split in order for task in splits[split]]
    return {f"searchqa_{number}": task for number, task in enumerate(tasks)}


def _search_r1(folder: str) -> QuestionSet:
    """Search-R1's seven datasets from its `train` and `test` files, numbered as in AgentGym."""
    by_split: dict[str, dict[str, tuple[Item, str | None]]] = {}
    aliases: dict[str, str] = {}
    numbered: dict[int, str] = {}
    for split, rows in rows_by_split(folder):
        if split not in ORIGINAL_NUMBERS:
            raise BadRequest(f"{folder} contains {split!r}; Search-R1's files are train and test")
        by_split[split] = {}
        counts = dict.fromkeys(ORIGINAL_NUMBERS[split], 0)
        for row in rows:
            source = _source(row, split)
            task = f"{split}/{source}/{counts[source]}"
            number = ORIGINAL_NUMBERS[split][source][0] + counts[source]
            numbered[number] = task
            # AgentGym's own lists name the source too.
            aliases |= {f"searchqa_{number}": task, f"{source}_{number}": task}
            by_split[split][task] = (Item(row.question, row.answers), source)
            counts[source] += 1
        for source, count in counts.items():
            first, end = ORIGINAL_NUMBERS[split][source]
            if count not in (0, end - first):
                raise BadRequest(
                    f"{folder} has {count} questions of {source} in {split}, and AgentGym numbers "
                    f"{end - first}; name the folder without {_SEARCH_R1} for another choice"
                )
    return _question_set(by_split, aliases, paper_selections("search", numbered))


def _source(row: Row, split: str) -> str:
    if row.source is None or row.source not in ORIGINAL_NUMBERS[split]:
        known = ", ".join(ORIGINAL_NUMBERS[split])
        raise BadRequest(f"{row.where} has the data_source {row.source!r}; {split} has {known}")
    return row.source


def _question_set(
    by_split: Mapping[str, Mapping[str, tuple[Item, str | None]]],
    aliases: Mapping[str, str],
    selections: Mapping[str, Sequence[str]] | None = None,
) -> QuestionSet:
    every = {task: known for tasks in by_split.values() for task, known in tasks.items()}
    return QuestionSet(
        TaskSet(
            {split: list(tasks) for split, tasks in by_split.items()},
            categories={task: c for task, (_, c) in every.items() if c is not None},
            aliases=aliases,
            selections=selections,
        ),
        {task: item for task, (item, _) in every.items()},
    )
