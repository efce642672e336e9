"""What is asked in the search world: questions with their answers, as tasks in splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from agentgym_env.errors import BadRequest
from agentgym_env.task_set import TaskSet
from agentgym_servers._search_rows import Row, rows_by_split
from agentgym_servers.generated_world.world import World

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


def world_questions(world: World) -> QuestionSet:
    """The questions of a world that comes with the package."""
    asked = {
        split: {q.id: (Item(q.text, tuple(q.answers)), q.category) for q in questions}
        for split, questions in world.questions.items()
    }
    return _question_set(asked, numbered(asked))


def read_questions(questions: str) -> QuestionSet:
    """The questions of files, or of a Hugging Face dataset; raises `BadRequest`."""
    if questions.startswith(_SEARCH_R1):
        return _search_r1(questions.removeprefix(_SEARCH_R1))
    asked: dict[str, dict[str, tuple[Item, str | None]]] = {}
    for split, rows in rows_by_split(questions):
        asked[split] = {}
        seen: dict[str, str] = {}
        for number, row in enumerate(rows):
            task = f"{split}/{number if row.id is None else row.id}"
            if task in seen:
                raise BadRequest(
                    f"{row.where} has the id of {seen[task]}; give every question its own, or none"
                )
            seen[task] = row.where
            asked[split][task] = (Item(row.question, row.answers), row.source)
    if not any(asked.values()):
        raise BadRequest(f"{questions} holds no questions")
    return _question_set(asked, numbered(asked))


def numbered(splits: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """AgentGym's kind of names, `searchqa_N`: the test split is counted first, as it does."""
    order = sorted(splits, key=lambda split: split != "test")
    tasks = [task for split in order for task in splits[split]]
    return {f"searchqa_{number}": task for number, task in enumerate(tasks)}


def _search_r1(folder: str) -> QuestionSet:
    """Search-R1's seven datasets from its `train` and `test` files, numbered as in AgentGym."""
    asked: dict[str, dict[str, tuple[Item, str | None]]] = {}
    aliases: dict[str, str] = {}
    for split, rows in rows_by_split(folder):
        if split not in ORIGINAL_NUMBERS:
            raise BadRequest(f"{folder} holds {split!r}; Search-R1's files are train and test")
        asked[split] = {}
        counts = dict.fromkeys(ORIGINAL_NUMBERS[split], 0)
        for row in rows:
            source = _source(row, split)
            task = f"{split}/{source}/{counts[source]}"
            aliases[f"searchqa_{ORIGINAL_NUMBERS[split][source][0] + counts[source]}"] = task
            asked[split][task] = (Item(row.question, row.answers), source)
            counts[source] += 1
        for source, count in counts.items():
            first, end = ORIGINAL_NUMBERS[split][source]
            if count not in (0, end - first):
                raise BadRequest(
                    f"{folder} has {count} questions of {source} in {split}, and AgentGym numbers "
                    f"{end - first}; name the folder without {_SEARCH_R1} for another choice"
                )
    return _question_set(asked, aliases)


def _source(row: Row, split: str) -> str:
    if row.source is None or row.source not in ORIGINAL_NUMBERS[split]:
        known = ", ".join(ORIGINAL_NUMBERS[split])
        raise BadRequest(f"{row.where} has the data_source {row.source!r}; {split} has {known}")
    return row.source


def _question_set(
    asked: Mapping[str, Mapping[str, tuple[Item, str | None]]], aliases: Mapping[str, str]
) -> QuestionSet:
    every = {task: known for tasks in asked.values() for task, known in tasks.items()}
    return QuestionSet(
        TaskSet(
            {split: list(tasks) for split, tasks in asked.items()},
            categories={task: c for task, (_, c) in every.items() if c is not None},
            aliases=aliases,
        ),
        {task: item for task, (item, _) in every.items()},
    )
