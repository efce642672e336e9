"""Which tasks, environments and rows the steps of a run use; knows nothing about episodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch


def row_order(rows: int, wanted: int, seed: int, *, shuffle: bool = True) -> list[int]:
    """Indices of `wanted` rows over as many epochs as needed; each epoch has every row once.

    A step may span two epochs, so that all steps have the same number of rows.
    """
    order: list[int] = []
    epoch = 0
    while len(order) < wanted:
        numbers = list(range(rows))
        if shuffle:
            random.Random(f"rows/{seed}/{epoch}").shuffle(numbers)
        order += numbers
        epoch += 1
    return order[:wanted]


def tasks_of_step(tasks: Sequence[str], seed: int, number: int, wanted: int) -> list[str]:
    """The `wanted` tasks of rollout `number`, counted from 0.

    Each epoch shuffles the tasks, in the order of TRL's sampler in an uninterrupted run. The tasks
    that do not fill a step at the end of an epoch are skipped. If there are fewer tasks than
    `wanted`, they repeat within a step.
    """
    steps = max(1, len(tasks) // wanted)
    epoch, place = divmod(number, steps)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(epoch + 1):
        order = torch.randperm(len(tasks), generator=generator).tolist()
    return [tasks[order[i % len(tasks)]] for i in range(place * wanted, (place + 1) * wanted)]


class TaskEpochs:
    """An endless sequence of tasks: one shuffled epoch after the other.

    Of `apart` successive tasks none is named twice, also where an epoch ends, as long as there are
    twice as many tasks.
    """

    def __init__(self, tasks: Sequence[str], apart: int, seed: int) -> None:
        self._tasks = list(tasks)
        self._apart = min(apart - 1, len(self._tasks) // 2)
        self._seed = seed
        self._epochs: list[list[str]] = []

    def take(self, first: int, wanted: int) -> list[str]:
        """The tasks `first` to `first + wanted`."""
        found: list[str] = []
        while len(found) < wanted:
            epoch, place = divmod(first + len(found), len(self._tasks))
            found += self._epoch(epoch)[place : place + wanted - len(found)]
        return found

    def _epoch(self, number: int) -> list[str]:
        while len(self._epochs) <= number:
            order = list(self._tasks)
            random.Random(f"epoch/{self._seed}/{len(self._epochs)}").shuffle(order)
            last = self._epochs[-1][-self._apart :] if self._epochs and self._apart else []
            begin = [task for task in order if task not in last][: self._apart]
            self._epochs.append([*begin, *(task for task in order if task not in begin)])
        return self._epochs[number]


def envs_of_step(weights: Sequence[float], wanted: int, seed: int) -> list[int]:
    """The environments of `wanted` groups, in a random order.

    Systematic sampling: each environment has its share of the groups, rounded down or up, and its
    exact share on average.
    """
    chance = random.Random(seed)
    ends = [sum(weights[: i + 1]) / sum(weights) for i in range(len(weights))]
    start = chance.random()
    chosen = [
        next(i for i, end in enumerate(ends) if (start + k) / wanted < end or end == ends[-1])
        for k in range(wanted)
    ]
    chance.shuffle(chosen)
    return chosen


class TaskContrast:
    """How often each task's recent groups were informative: had episodes that differ in return.

    A task's weight is (a + q) / (n + 1), for n groups of which a were informative, and at least
    1/20. q is the same ratio for the task's category, with q = 1 before any group: so a new task
    is judged by the others of its category. Older groups count less. Tasks are pairs of the number
    of the environment and the task's id.
    """

    FILE = "tasks.json"
    _MEMORY = 0.8
    _CATEGORY_MEMORY = 0.98
    """Also of an environment."""
    _LEAST = 0.05

    def __init__(self, category: Callable[[int, str], str | None]) -> None:
        self._category = category
        self._counts: dict[str, tuple[float, float]] = {}
        """Name of a task, category or environment -> decayed a and n."""

    def observe(self, env: int, task: str, informative: bool) -> None:
        """Count a group."""
        for name, memory in (
            (f"task {env} {task}", self._MEMORY),
            (self._category_of(env, task), self._CATEGORY_MEMORY),
            (f"env {env}", self._CATEGORY_MEMORY),
        ):
            found, groups = self._counts.get(name, (0.0, 0.0))
            self._counts[name] = (memory * found + informative, memory * groups + 1)

    def weight(self, env: int, task: str) -> float:
        """The relative frequency with which a task is drawn."""
        expected = self._rate(self._category_of(env, task), 1.0)
        return max(self._LEAST, self._rate(f"task {env} {task}", expected))

    def env_weight(self, env: int) -> float:
        """The relative frequency with which an environment is drawn."""
        return max(self._LEAST, self._rate(f"env {env}", 1.0))

    def _rate(self, name: str, prior: float) -> float:
        found, groups = self._counts.get(name, (0.0, 0.0))
        return (found + prior) / (groups + 1)

    def _category_of(self, env: int, task: str) -> str:
        return f"category {env} {self._category(env, task)}"

    def draw(self, env: int, tasks: Sequence[str], wanted: int, seed: int) -> list[str]:
        """`wanted` different tasks by weight; if there are fewer tasks, they repeat.

        The draw is that of Efraimidis and Spirakis (doi:10.1016/j.ipl.2005.11.003): the tasks with
        the largest u^(1/weight), u uniform.
        """
        chance = random.Random(seed)
        keys = {task: chance.random() ** (1 / self.weight(env, task)) for task in tasks}
        order = sorted(keys, key=lambda task: -keys[task])
        return [order[i % len(order)] for i in range(wanted)]

    def save(self, folder: Path) -> None:
        """Write the counts to a checkpoint's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.FILE).write_bytes(msgspec.json.encode(self._counts))

    def load(self, folder: Path) -> None:
        """Load the counts from a checkpoint's folder."""
        kept = (folder / self.FILE).read_bytes()
        self._counts = msgspec.json.decode(kept, type=dict[str, tuple[float, float]])
