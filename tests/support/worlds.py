"""Small environments for tests; importable in a server's process too."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_env import TaskSet, TextEnv


class Guess(TextEnv):
    """Guess a number from 1 to 9; the observation depends on the episode's seed."""

    instruction = "Guess the number from 1 to 9. Answer with a number."
    tasks = TaskSet({"train": list("123456"), "test": list("789")}, {"1": "low", "9": "high"})

    def __init__(self, render_mode: str | None = None, greeting: str = "Hello") -> None:
        super().__init__(render_mode)
        self._greeting = greeting

    def _reset(self, task: str) -> str:
        self.number = int(task)
        return f"{self._greeting}, round {int(self.rng.random() * 1e9)}. Which number?"

    def _step(self, action: str) -> tuple[str, float, bool]:
        right = action.strip() == str(self.number)
        return ("Right!" if right else f"{action!r} is wrong."), float(right), right

    def available_actions(self) -> list[str]:
        """The nine digits."""
        return list("123456789")

    def expert(self) -> Iterator[str]:
        """Know the number."""
        yield str(self.number)


class Trouble(TextEnv):
    """Fails in every way an environment can, on demand."""

    instruction = "Name the trouble."
    tasks = TaskSet({"train": ["fine", "broken"]})
    closed = 0

    def _reset(self, task: str) -> str:
        if task == "broken":
            raise RuntimeError("the world did not start")
        self._extra: object = None
        return "What now?"

    def _step(self, action: str) -> tuple[str, float, bool]:
        if action == "raise":
            raise ZeroDivisionError("\ud800 by zero")
        if action == "nan":
            return "nothing", float("nan"), False
        if action == "die":
            os._exit(7)
        self._extra = {"object": object(), "loop": _endless()}.get(action)
        return f"You said {action}", 0.0, action == "end"

    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "extra": self._extra}

    def close(self) -> None:
        """Count, to show that it was called."""
        Trouble.closed += 1


class Unmakeable(TextEnv):
    """Cannot be constructed."""

    instruction = "Never seen."
    tasks = TaskSet({"train": ["only"]})

    def __init__(self) -> None:
        raise ValueError("no such luck")

    def _reset(self, task: str) -> str:
        return ""

    def _step(self, action: str) -> tuple[str, float, bool]:
        return "", 0.0, False


class Wild(TextEnv):
    """Blocks or dies on demand; a server steps it in processes of their own.

    A step `until PATH` makes the file `PATH.begun.PID`, and lasts until there is a file PATH.
    """

    instruction = "Behave."
    tasks = TaskSet({"train": ["a", "b"]})
    isolated = True
    step_timeout_s = 1.0

    def _reset(self, task: str) -> str:
        print("noise on stdout")  # noqa: T201
        self.count = 0
        return "What now?"

    def _step(self, action: str) -> tuple[str, float, bool]:
        self.count += 1
        if action == "hang":
            time.sleep(1000)
        if action == "die":
            os._exit(3)
        if action == "wait":
            time.sleep(0.3)
        if action.startswith("until "):
            until = action.removeprefix("until ")
            Path(f"{until}.begun.{os.getpid()}").touch()
            while not os.path.exists(until):
                time.sleep(0.01)
        if action.startswith("stop "):  # the server, and go on when it has begun to end
            _, pid, *ports = action.split()
            os.kill(int(pid), signal.SIGTERM)
            with contextlib.suppress(ConnectionError):
                while ports:
                    socket.create_connection(("127.0.0.1", int(ports[0]))).close()
        return f"{os.getpid()} {self.count}", 0.0, False


class HangsAtItsEnd(TextEnv):
    """Never returns from `close`."""

    instruction = "Behave."
    tasks = TaskSet({"train": ["a"]})
    isolated = True

    def _reset(self, task: str) -> str:
        return str(os.getpid())

    def _step(self, action: str) -> tuple[str, float, bool]:
        return "", 0.0, False

    def close(self) -> None:
        """Wait for ever."""
        threading.Event().wait()


class Battery(TextEnv):
    """Ends by a limit of its own after three turns; `done` ends its task."""

    instruction = "Say done before the battery is empty."
    tasks = TaskSet({"train": ["a", "b"]})

    def _reset(self, task: str) -> str:
        self.left = 3
        return "Three turns are left."

    def _step(self, action: str) -> tuple[str, float, bool]:
        self.left -= 1
        return f"{self.left} left.", float(action == "done"), action == "done"

    def world_limit(self) -> bool:
        """Whether the battery is empty."""
        return self.left == 0

    def available_actions(self) -> list[str]:
        """What can be said."""
        return ["wait", "done"]


class Heavy(TextEnv):
    """Lists many actions, and its expert takes 10 milliseconds."""

    instruction = "Wait."
    tasks = TaskSet({"train": ["a"]})

    def _reset(self, task: str) -> str:
        return "What now?"

    def _step(self, action: str) -> tuple[str, float, bool]:
        return "o" * 20_000, 0.0, False

    def available_actions(self) -> list[str]:
        """A megabyte of them."""
        return [f"{number:100}" for number in range(10_000)]

    def expert(self) -> Iterator[str]:
        """Think, and wait."""
        while True:
            time.sleep(0.01)
            yield "wait"


def _endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


class Hangs(TextEnv):
    """Takes ten seconds for a reset, or for a step, and makes the file `begun` before."""

    instruction = "Wait."
    tasks = TaskSet({"train": ["reset", "step"]})

    def __init__(self, render_mode: str | None = None, begun: str = "") -> None:
        super().__init__(render_mode)
        self._begun = Path(begun)

    def _reset(self, task: str) -> str:
        self._wait(task == "reset")
        return "Begin."

    def _step(self, action: str) -> tuple[str, float, bool]:
        self._wait(True)
        return "still here", 0.0, False

    def _wait(self, here: bool) -> None:
        if here:
            self._begun.touch()
            time.sleep(10)


class Stalls(TextEnv):
    """Takes ten minutes for a step of some tasks, and for a reset of one, in different ways."""

    instruction = "Wait."
    tasks = TaskSet({"train": ["fine", "good", "sleeps", "spins", "swallows", "starts"]})
    step_timeout_s = 2.0

    def _reset(self, task: str) -> str:
        self._here = task
        if task == "starts":
            time.sleep(600)
        return "Begin."

    def _step(self, action: str) -> tuple[str, float, bool]:
        end = time.monotonic() + 600
        if self._here == "sleeps":
            time.sleep(600)
        while self._here == "spins" and time.monotonic() < end:
            pass
        while self._here == "swallows" and time.monotonic() < end:
            with contextlib.suppress(Exception):
                threading.Event().wait(600)
        return "Done.", 1.0, True

    def success(self) -> bool:
        """Whether the step returned."""
        return self._turn > 0

    def expert(self) -> Iterator[str]:
        """Go on."""
        yield "go on"
