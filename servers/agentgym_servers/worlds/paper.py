"""The tasks of the AgentGym-RL paper (arXiv:2509.08755), as selections of our worlds.

`paper_tasks.json` has AgentGym's numbers of these tasks, in the order of its files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

EVALUATION: Final = "paper"
TRAINING: Final = "paper_train"
CLEAN: Final = "paper_clean"
"""The evaluation tasks that are not among the training tasks."""


def paper_selections(world: str, tasks: Mapping[int, str]) -> dict[str, list[str]]:
    """The paper's lists of a world's tasks, given the task of each of AgentGym's numbers.

    A list is left out if one of its tasks is not there, so that the name keeps its meaning.
    """
    lists = _numbers()[world]
    found = {
        name: [tasks[number] for number in numbers]
        for name, numbers in lists.items()
        if all(number in tasks for number in numbers)
    }
    trained = set(lists.get(TRAINING, ()))
    clean = [number for number in lists[EVALUATION] if number not in trained]
    if EVALUATION in found and len(clean) < len(lists[EVALUATION]):
        found[CLEAN] = [tasks[number] for number in clean]
    return found


def paper_numbers(world: str) -> frozenset[int]:
    """All of AgentGym's numbers that the paper's lists name in a world."""
    return frozenset(number for numbers in _numbers()[world].values() for number in numbers)


@cache
def _numbers() -> dict[str, dict[str, list[int]]]:
    text = files(__package__).joinpath("paper_tasks.json").read_text(encoding="utf-8")
    listed: dict[str, dict[str, list[int]]] = json.loads(text)
    return listed
