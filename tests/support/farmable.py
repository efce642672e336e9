"""Environments with a reward that can be collected without solving the task, and sound ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentgym_env import TaskSet, TextEnv
from faulty import PaysAgain, Sound

NAMES = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo")


class PaysAgainWithoutExpert(PaysAgain):
    """Nothing to compare its rewards with."""

    expert = TextEnv.expert


class PaysOnceForNothing(PaysAgain):
    """Pays a little for the first no, though the solution is paid at its end."""

    def _step(self, action: str) -> tuple[str, float, bool]:
        observation, _, ended = super()._step(action)
        first = action == "no" and "no" not in self.earlier
        self.earlier.add(action)
        return observation, 0.1 * first + ended, ended

    def _reset(self, task: str) -> str:
        self.earlier: set[str] = set()
        return super()._reset(task)


class PaysForEachStep(PaysAgain):
    """Pays a third for each yes: partial reward, as it should be."""

    def _step(self, action: str) -> tuple[str, float, bool]:
        observation, _, ended = Sound._step(self, action)
        return observation, (action == "yes") / 3, ended


class Raises(Sound):
    def _step(self, action: str) -> tuple[str, float, bool]:
        if self.said == 1 and action == "no":
            raise LookupError("no")
        return super()._step(action)


class Ask(TextEnv):
    """Name one of the people, once; only the exact name counts."""

    instruction = "Who is asked for? Answer <answer>NAME</answer>."
    tasks = TaskSet({"train": list(NAMES[:4]), "test": list(NAMES[4:])})

    def _reset(self, task: str) -> str:
        self.name = task
        return f"The people are {', '.join(NAMES)}. Asked for is number {NAMES.index(task)}."

    def _step(self, action: str) -> tuple[str, float, bool]:
        found = re.fullmatch(r"<answer>(.*)</answer>", action)
        if found is None:
            return "Answer <answer>NAME</answer>.", 0.0, False
        right = self.is_right(found[1])
        return "Thank you.", float(right), True

    def is_right(self, answer: str) -> bool:
        return answer == self.name

    def expert(self) -> Iterator[str]:
        """Name them."""
        yield f"<answer>{self.name}</answer>"


class AskLoosely(Ask):
    """Accepts any answer with the name in it."""

    def is_right(self, answer: str) -> bool:
        return self.name in answer


class Visit(TextEnv):
    """Go to a page, and stop there."""

    instruction = "Go to the page that is asked for: goto('URL'). Then stop('')."
    tasks = TaskSet({"train": list(NAMES[:4]), "test": list(NAMES[4:])})

    def _reset(self, task: str) -> str:
        self.target, self.url = f"http://people.test/{task}", ""
        return f"Page http://people.test/start. Go to the page of {task}."

    def _step(self, action: str) -> tuple[str, float, bool]:
        if action == "stop('')":
            return "Bye.", float(self.is_there()), True
        found = re.fullmatch(r"goto\('(.*)'\)", action)
        self.url = found[1] if found else self.url
        return f"Page {self.url}.", 0.0, False

    def is_there(self) -> bool:
        return self.url == self.target

    def expert(self) -> Iterator[str]:
        """Go there."""
        yield f"goto('{self.target}')"
        yield "stop('')"


class VisitLoosely(Visit):
    """Accepts any address that contains the page's, as WebArena's rule does."""

    def is_there(self) -> bool:
        return self.target.removeprefix("http://") in self.url


class PaysInTheEnd(TextEnv):
    """Pays for each look, but only once the door is opened."""

    instruction = "Say look or open."
    tasks = TaskSet({"train": list("abcd"), "test": list("ef")})

    def _reset(self, task: str) -> str:
        self.looks = 0
        return f"You stand before door {task}."

    def _step(self, action: str) -> tuple[str, float, bool]:
        self.looks += action == "look"
        opened = action == "open"
        return "A door.", opened * (0.8 + 0.2 * self.looks), opened

    def success(self) -> bool:
        """Whether the door is open."""
        return self._over

    def available_actions(self) -> list[str]:
        """Both."""
        return ["look", "open"]

    def expert(self) -> Iterator[str]:
        """Look once, then open."""
        yield "look"
        yield "open"


class Graded(TextEnv):
    """One answer, graded by its share of right letters, which ends the episode."""

    instruction = "Answer with two letters."
    tasks = TaskSet({"train": ["ab", "cd", "ef"], "test": ["gh"]})

    def _reset(self, task: str) -> str:
        self.letters, self.best = task, 0.0
        return f"The letters are {task}."

    def _step(self, action: str) -> tuple[str, float, bool]:
        right = sum(a == b for a, b in zip(action, self.letters, strict=False))
        self.best = right / 2 if len(action) == 2 else 0.0
        return "Graded.", self.best, True

    def success(self) -> bool:
        """Whether both letters are right."""
        return self.best == 1

    def available_actions(self) -> list[str]:
        """Some with one right letter."""
        return ["ax", "cx", "ab", "xd"]

    def expert(self) -> Iterator[str]:
        """The letters."""
        yield self.letters


class CostsEachTurn(TextEnv):
    """Costs a point for each turn, so that giving up is worth more than the solution."""

    instruction = "Say walk, or quit."
    tasks = TaskSet({"train": list("abcd"), "test": list("ef")})

    def _reset(self, task: str) -> str:
        self.walked = 0
        return f"Walk three steps to {task}."

    def _step(self, action: str) -> tuple[str, float, bool]:
        self.walked += action == "walk"
        return f"{self.walked} steps.", -1.0, action == "quit" or self.walked == 3

    def success(self) -> bool:
        """Whether the way is walked."""
        return self.walked == 3

    def available_actions(self) -> list[str]:
        """Both."""
        return ["walk", "quit"]

    def expert(self) -> Iterator[str]:
        """Walk."""
        yield from ["walk"] * 3


class RaisesAtReset(TextEnv):
    """Cannot begin one of its tasks; it has no expert."""

    instruction = "Say go."
    tasks = TaskSet({"train": list("abcd"), "test": list("ef")})

    def _reset(self, task: str) -> str:
        if task == "b":
            raise RuntimeError("a bug")
        return "Go."

    def _step(self, action: str) -> tuple[str, float, bool]:
        return "Gone.", 0.0, True

    def success(self) -> bool:
        """Never."""
        return False

    def available_actions(self) -> list[str]:
        """The one."""
        return ["go"]
