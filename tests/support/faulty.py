"""Environments that break one promise each, to show that each rule can fail."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

from agentgym_env import TaskSet, TextEnv, TextSpace
from agentgym_env.tool_env import ToolEnv, ToolResult, tool
from agentgym_env.tools import Verb


class Sound(TextEnv):
    """Keeps every promise; the others differ in one place."""

    instruction = "Say yes three times."
    tasks = TaskSet({"train": ["a", "b", "c"], "test": ["d"]})
    verbs = (Verb("yes"), Verb("no"))

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


class NotANumberLate(Sound):
    """The reward of the 20th turn of an episode is NaN; an expert's episode has 3."""

    def _step(self, action: str) -> tuple[str, float, bool]:
        observation, reward, ended = super()._step(action)
        return observation, float("nan") if self._turn == 19 else reward, ended


class RaisesLate(Sound):
    """The list of hints is exhausted by an episode that fails."""

    def _step(self, action: str) -> tuple[str, float, bool]:
        observation, reward, ended = super()._step(action)
        hints = ["Say yes."] * 15
        return (observation if ended else hints[self._turn]), reward, ended


class Walk(Sound):
    """Actions with an argument: `go N`."""

    def _step(self, action: str) -> tuple[str, float, bool]:
        verb, _, place = action.partition(" ")
        self.said += verb == "go" and place == "2"
        return f"{self.said} of 3", float(self.said == 3), self.said == 3

    def available_actions(self) -> list[str]:
        """Two places."""
        return ["go 1", "go 2"]

    def expert(self) -> Iterator[str]:
        """Go there."""
        while True:
            yield "go 2"


class UnknownPlace(Walk):
    def _step(self, action: str) -> tuple[str, float, bool]:
        words = action.split(" ")
        if words[0] == "go" and len(words) == 2:
            int(words[1])
        return super()._step(action)


class HugeNumber(Walk):
    def _step(self, action: str) -> tuple[str, float, bool]:
        number = action.removeprefix("go ")
        if number.isdecimal() and number.isascii() and len(number) < 100:
            bytes(int(number))
        return super()._step(action)


class MissingWord(Walk):
    def _step(self, action: str) -> tuple[str, float, bool]:
        if action.startswith("go"):
            action.split()[1]
        return super()._step(action)


class UpperCase(Walk):
    def _step(self, action: str) -> tuple[str, float, bool]:
        if action.lower().startswith("go ") and action[:2] != "go":
            raise KeyError(action[:2])
        return super()._step(action)


class InvalidListed(Sound):
    def available_actions(self) -> list[str]:
        """One of them is not understood."""
        return ["yes", "no", "maybe"]

    def _step(self, action: str) -> tuple[str, float, bool]:
        self.invalid = action not in ("yes", "no")
        return super()._step(action)

    def invalid_action(self) -> bool:
        """Whether it is another word."""
        return self.invalid


class SometimesInvalid(InvalidListed):
    def available_actions(self) -> list[str]:
        """The second is only understood after a yes."""
        return ["say yes", "say no"]

    def _step(self, action: str) -> tuple[str, float, bool]:
        result = super()._step(action.removeprefix("say "))
        self.invalid = action == "say no" and not self.said
        return result


class Hidden(TextEnv):
    """A number to find, and a word to give as the answer; sound."""

    instruction = "Answer with a word, such as: answer red."
    tasks = TaskSet({"train": ["0", "1", "2", "3"], "test": ["4", "5"]})
    words = ("red", "green", "blue", "black", "white", "pink")

    def _reset(self, task: str) -> str:
        self.word = self.words[int(task)]
        self.opened = False
        return f"Box {int(task) + 1} of a row is closed."

    def _step(self, action: str) -> tuple[str, float, bool]:
        if action == "open":
            self.opened = True
            return f"It contains a {self.word} ball.", 0.0, False
        right = action == f"answer {self.word}"
        return "Right." if right else "Wrong.", float(right), action.startswith("answer ")

    def expert(self) -> Iterator[str]:
        """Look and answer."""
        if not self.opened:
            yield "open"
        yield f"answer {self.word}"


class TwinAcrossSplits(Hidden):
    def _reset(self, task: str) -> str:
        return super()._reset("3" if task == "5" else task)


class TwinInOneSplit(Hidden):
    def _reset(self, task: str) -> str:
        return super()._reset("0" if task == "2" else task)


class OnlyTrain(Sound):
    tasks = TaskSet({"train": ["a", "b", "c"]})


class NamesTheAnswer(Hidden):
    def _reset(self, task: str) -> str:
        return f"{super()._reset(task)} (Answer: {self.word})"


class ShowsTheAnswer(Hidden):
    """Nothing says that it is the answer, and it is in each first observation."""

    def _reset(self, task: str) -> str:
        return f"{super()._reset(task)} There is {self.word} paint on it."


class AnswerInTheInfo(Hidden):
    def details(self) -> dict[str, str | int | float]:
        """Meant for a log."""
        return {"ball": self.word}


class SolutionInTheObservation(Hidden):
    def _reset(self, task: str) -> str:
        return f"{super()._reset(task)} To do: open, then answer {self.word}."


class OneTaskUnsolved(Sound):
    tasks = TaskSet({"train": [f"t{n}" for n in range(64)], "test": ["x"]})

    def expert(self) -> Iterator[str]:
        """Forget one."""
        yield "yes"
        if self._task != "t37":
            yield "yes"
            yield "yes"


class ExpertRaises(OneTaskUnsolved):
    def expert(self) -> Iterator[str]:
        """Divide."""
        for _ in range(3):
            yield "yes" if 1 / (self._task != "t37") else "no"


class ExpertOnlyOnItsWay(Sound):
    """The expert reads a plan that ends where another action was taken."""

    def _reset(self, task: str) -> str:
        self.way: list[str] = []
        return super()._reset(task)

    def _step(self, action: str) -> tuple[str, float, bool]:
        self.way.append(action)
        return super()._step(action)

    def expert(self) -> Iterator[str]:
        """Raise where the way is another."""
        while True:
            yield next(word for word in ["yes"] if set(self.way) <= {"yes", "no"})


class PaysAgain(Sound):
    """Pays half for each no."""

    def _step(self, action: str) -> tuple[str, float, bool]:
        observation, reward, ended = super()._step(action)
        return observation, reward + 0.5 * (action == "no"), ended

    def success(self) -> bool:
        """Whether yes was said three times."""
        return self.said == 3


class PaysForAProgressTwice(PaysAgain):
    """Pays for each yes after a no: the expert is paid once, a loop without end."""

    def _reset(self, task: str) -> str:
        self.ready = True
        return super()._reset(task)

    def _step(self, action: str) -> tuple[str, float, bool]:
        paid = action == "yes" and self.ready
        self.ready = (self.ready and not paid) or action == "no"
        if action == "no":
            self.said = 0
        observation, reward, ended = Sound._step(self, action)
        return observation, reward + 0.5 * paid, ended


class LongObservation(Sound):
    def _step(self, action: str) -> tuple[str, float, bool]:
        return "x" * 50_000, *super()._step(action)[1:]


class SlowStep(Sound):
    """One action takes its time."""

    def _step(self, action: str) -> tuple[str, float, bool]:
        if action == "yes" and self.said == 2 and not SlowStep.slept:
            SlowStep.slept = True
            time.sleep(3.5)
        return super()._step(action)

    slept = False


class Hangs(Sound):
    """An action never returns; the timeout is short for the test."""

    step_timeout_s = 3.0

    def _step(self, action: str) -> tuple[str, float, bool]:
        while action == "yes yes":
            pass
        return super()._step(action)


class SlowWorld(Sound):
    """Every step is slow."""

    def _step(self, action: str) -> tuple[str, float, bool]:
        time.sleep(0.3)
        return super()._step(action)


class PlainDict(Sound):
    tasks = {"train": ["a"], "test": ["b"]}  # type: ignore[assignment]  # noqa: RUF012


class BadAlias(Sound):
    tasks = TaskSet({"train": ["a"], "test": ["b"]}, aliases={"first": "z"})


class NoStep(TextEnv):
    instruction = "Do something."
    tasks = TaskSet({"train": ["a"], "test": ["b"]})

    def _reset(self, task: str) -> str:
        return "Go."


class BadTasksWhenMade(Sound):
    """Its tasks are made in the constructor, from the argument `kind`."""

    def __init__(self, render_mode: str | None = None, kind: str = "empty") -> None:
        splits = {
            "empty": {},
            "numbers": {"train": [1, 2], "test": [3]},
            "twice": {"train": ["a", "a"], "test": ["b"]},
            "across": {"train": ["a"], "test": ["a"]},
            "no list": {"train": 5},
        }
        self.tasks = TaskSet(splits[kind])  # type: ignore[misc]
        super().__init__(render_mode)


class NoText(Sound):
    def _step(self, action: str) -> tuple[str, float, bool]:
        return None, *super()._step(action)[1:]  # type: ignore[return-value]


class DividesInATool(ToolEnv):
    instruction = "Share the cake."
    tasks = TaskSet({"train": ["a", "b"], "test": ["c"]})

    def _reset(self, task: str) -> str:
        return f"Cake {task}."

    @tool
    def share(self, guests: int) -> ToolResult:
        """Cut the cake."""
        return f"{360 // guests} degrees each", float(guests == 7), guests == 7
