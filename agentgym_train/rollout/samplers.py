"""Task samplers: which task the next group plays. A sampler may learn from the groups' results."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentgym_train.rollout.groups import Group


class TaskSource(NamedTuple):
    """The tasks of an environment that are trained on."""

    env: str
    weight: float
    tasks: Mapping[str, str | None]
    """Task -> its category, in the order of the split."""


class TaskSampler:
    """Chooses the tasks of a run; in a config, `sampler: package.module:Class` names another one.

    Every process makes the same calls, and plays its share of the tasks. They must choose alike, so
    take chance from `chance` only, which is seeded before each call of `next`.
    """

    chance: random.Random
    sources: list[TaskSource]
    seed: int

    def begin(self, sources: Sequence[TaskSource], seed: int) -> None:
        """Called once, before anything else; `seed` is the run's."""
        self.sources, self.seed = list(sources), seed

    def next(self) -> tuple[int, str]:
        """(number of the environment, task) of the next group; every sampler defines it."""
        raise NotImplementedError

    def observe(self, group: Group) -> None:
        """Learn from a group, trained on or not; without returns if it was dropped or lost."""

    def state(self) -> Any:
        """What `load` needs in a resumed run, as values of JSON."""

    def load(self, state: Any) -> None:
        """Go on from a checkpoint's state; called after `begin`."""


@dataclass
class UniformSampler(TaskSampler):
    """All tasks in a random order, again and again; environments by their weights."""

    def begin(self, sources: Sequence[TaskSource], seed: int) -> None:
        """Start the first epochs."""
        super().begin(sources, seed)
        self._credits, self._drawn = [0.0] * len(sources), [0] * len(sources)
        self._epochs: list[list[list[str]]] = [[] for _ in sources]

    def next(self) -> tuple[int, str]:
        """The next task of its environment's epoch."""
        env = self._next_env([source.weight for source in self.sources])
        return env, self._next_task(env)

    def state(self) -> Any:
        """The shares of the environments so far, and the number of tasks from each."""
        return {"credits": self._credits, "drawn": self._drawn}

    def load(self, state: Any) -> None:
        """Go on in the same epochs."""
        self._credits, self._drawn = list(state["credits"]), list(state["drawn"])

    def _next_env(self, weights: Sequence[float]) -> int:
        """The environment that is furthest behind its share."""
        self._credits = [c + w / sum(weights) for c, w in zip(self._credits, weights, strict=True)]
        env = max(range(len(weights)), key=self._credits.__getitem__)
        self._credits[env] -= 1
        return env

    def _next_task(self, env: int) -> str:
        tasks, epochs = list(self.sources[env].tasks), self._epochs[env]
        epoch, place = divmod(self._drawn[env], len(tasks))
        while len(epochs) <= epoch:
            order = random.Random(f"{self.seed}/{env}/{len(epochs)}").sample(tasks, len(tasks))
            # The last third of an epoch does not come in the first third of the next one.
            third = len(tasks) // 3
            last = set(epochs[-1][len(tasks) - third :] if epochs else ())
            first = [task for task in order if task not in last][:third]
            epochs.append([*first, *(task for task in order if task not in set(first))])
        self._drawn[env] += 1
        return epochs[epoch][place]
