"""Environments that break one promise each, to show that each rule can fail."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

from agentgym_env import TaskSet, TextEnv, TextSpace


class Sound(TextEnv):
    """Keeps every promise; the others differ in one place."""

    instruction = "Say yes three times."
    tasks = TaskSet({"train": ["a", "b", "c"], "test": ["d"]})

    def _reset(self, task: str) -> str:
        self.said = 0
        return f"Task {task}, number {int(self.rng.random() * 1000)}."

    def _step(self, action: str) -> tuple[str, float, bool]:
        self.said += action == "yes"
        return f"{self.said} of 3", float(self.said == 3), self.said == 3

    def available_actions(self) -> list[str]:
        """Two words."""
        return ["yes", "no"]

    def expert(self) -> Iterator[str]:
        """Say it."""
        while True:
            yield "yes"


class NoExpert(Sound):
    expert = TextEnv.expert


class NarrowSpace(Sound):
    observation_space = TextSpace(5)


class NoDefaultSplit(Sound):
    default_split = "training"


class GlobalRandom(Sound):
    def _reset(self, task: str) -> str:
        return f"{super()._reset(task)} {random.random()}"


class HashOrder(Sound):
    def _reset(self, task: str) -> str:
        return f"{super()._reset(task)} {' '.join({'red', 'green', 'blue', 'black', 'white'})}"


class ProcessBound(Sound):
    def _reset(self, task: str) -> str:
        return f"{super()._reset(task)} {os.getpid()}"


class NarrowActions(Sound):
    action_space = TextSpace(2)


class DrawsWhenAsked(Sound):
    def available_actions(self) -> list[str]:
        self.said += int(self.rng.random() > 2) + 1
        return ["yes", "no"]


class BadExpert(Sound):
    def expert(self) -> Iterator[str]:
        yield "yes"


class GoesOnAfterTheEnd(Sound):
    def step(self, action: str):
        self._over = False
        return super().step(action)


class RaisesOnNothing(Sound):
    def _step(self, action: str) -> tuple[str, float, bool]:
        action[0]
        return super()._step(action)


class EchoesTwice(Sound):
    def _step(self, action: str) -> tuple[str, float, bool]:
        return action + action, *super()._step(action)[1:]


class SharedCount(Sound):
    counts = 0

    def _reset(self, task: str) -> str:
        SharedCount.counts = 0
        return super()._reset(task)

    def _step(self, action: str) -> tuple[str, float, bool]:
        SharedCount.counts += 1
        return f"{SharedCount.counts}", *super()._step(action)[1:]


class RaisesWhenMade(Sound):
    def __init__(self) -> None:
        raise OSError("no disc")
