"""The environment under test: makes it, plays episodes of it, and measures its calls."""

from __future__ import annotations

import json
import math
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from agentgym_env.registry import construct, env_class, find
from agentgym_env.text_env import TextEnv
from agentgym_env.wire import JSON, decode, encode

T = TypeVar("T")

MAIN_THREAD: Final = threading.main_thread()

Transcript = list[Any]
"""The result of `reset`, then of each `step`, as plain JSON values."""

EXPERT_TURNS = 1000
"""Turns after which the expert is not waited for."""

_TURNS = 12


class Script(Struct, frozen=True):
    """An episode to play: its start and its actions."""

    task: str
    seed: int
    actions: list[str]


class Scripts(Struct, frozen=True):
    """The episodes that another process plays."""

    entry_point: str
    env_kwargs: dict[str, Any]
    scripts: list[Script]


@dataclass(slots=True)
class Measured:
    """What the resets, or the steps, of a check cost."""

    calls: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    slowest: str = ""
    longest: int = 0
    longest_of: str = ""

    @property
    def mean_s(self) -> float:
        """Mean time of a call."""
        return self.seconds / self.calls if self.calls else 0.0

    def add(self, call: str, seconds: float, observation: str) -> None:
        """Count one call."""
        self.calls += 1
        self.seconds += seconds
        if seconds > self.slowest_s:
            self.slowest_s, self.slowest = seconds, call
        if len(observation) > self.longest:
            self.longest, self.longest_of = len(observation), call


@dataclass
class Subject:
    """The environment under test, and how much of it to check."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tasks_per_split: int | Literal["all"] | None = None
    sessions: int = 64
    time_limit_s: float = 300.0
    max_observation: int = 32_000
    max_step_s: float = 2.0
    resets: Measured = field(default_factory=Measured)
    steps: Measured = field(default_factory=Measured)
    rule_ends: float = math.inf
    """When the time of the current rule is used up, by `time.monotonic`."""
    cut: str = ""
    """What the current rule left out for lack of time."""

    @property
    def entry_point(self) -> str:
        """`module:Class`."""
        return find(self.env_id).entry_point

    @property
    def horizon(self) -> int:
        """Turns after which an episode without an end is left."""
        return find(self.env_id).max_episode_steps or 200

    @property
    def rule_s(self) -> float:
        """Time of one rule: a rule that repeats episodes takes several times as long."""
        return self.time_limit_s / 15

    @property
    def time_is_up(self) -> bool:
        """Whether the current rule has used its time."""
        return time.monotonic() > self.rule_ends

    def make(self) -> TextEnv:
        """A fresh environment."""
        return construct(env_class(self.env_id), self.env_kwargs)

    def tasks(self, most: int) -> list[str]:
        """Evenly spaced tasks of every split: as many as were asked for, else `most`."""
        per_split = most if self.tasks_per_split is None else self.tasks_per_split
        chosen: list[str] = []
        for ids in self.make().tasks.splits.values():
            count = len(ids) if per_split == "all" else min(len(ids), per_split)
            chosen += [ids[i * len(ids) // count] for i in range(count)]
        return chosen

    @cached_property
    def sample(self) -> list[str]:
        """The tasks that most rules use."""
        return self.tasks(6)

    @cached_property
    def scripts(self) -> list[Script]:
        """One episode for each task of the sample."""
        env = self.make()
        scripts = []
        for seed, task in self.in_time(list(enumerate(self.sample))):
            scripts.append(write_script(env, task, seed, _TURNS, self))
        env.close()
        return scripts

    def in_time(self, items: Sequence[T]) -> Iterator[T]:
        """The items, until the time of the rule is used up; at least one."""
        for done, item in enumerate(items):
            if done and self.time_is_up:
                self.cut = f"{done} of {len(items)} in {self.rule_s:.0f} s"
                return
            yield item

    def reset(self, env: TextEnv, task: str, seed: int) -> tuple[str, dict[str, Any]]:
        """Start an episode, and measure it."""
        began = time.monotonic()
        with interrupted_after(env.step_timeout_s):
            result = env.reset(seed=seed, options={"task": task})
        self.resets.add(f"reset of task {task!r}", time.monotonic() - began, result[0])
        return result

    def step(self, env: TextEnv, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply an action, and measure it."""
        began = time.monotonic()
        with interrupted_after(env.step_timeout_s):
            result = env.step(action)
        self.steps.add(f"action {shorten(action, 80)}", time.monotonic() - began, result[0])
        return result


def write_script(
    env: TextEnv, task: str, seed: int, turns: int, subject: Subject | None = None
) -> Script:
    """An episode of at most `turns` turns: the expert's actions mixed with available ones."""
    subject = subject or Subject("")
    draw = random.Random(f"script/{task}/{seed}")
    subject.reset(env, task, seed)
    actions: list[str] = []
    while len(actions) < turns and not (actions and subject.time_is_up):
        choices = list(env.available_actions() or ["look", "help", "1"])
        expert = env.expert_action() if env.has_expert() and draw.random() < 0.5 else None
        action = expert or choices[int(draw.random() * len(choices))]
        actions.append(action)
        if any(subject.step(env, action)[2:4]):
            break
    return Script(task, seed, actions)


def play(env: TextEnv, script: Script) -> Transcript:
    """The transcript of one script."""
    first = env.reset(seed=script.seed, options={"task": script.task})
    told: Transcript = [first]
    for action in script.actions:
        told.append(env.step(action))
    as_json: Transcript = plain(told)
    return as_json


def plain(value: Any) -> Any:
    """Values after a round trip through JSON: tuples become lists, numpy numbers plain ones."""
    return decode(encode(value), Any, JSON)


def difference(first: Sequence[Transcript], second: Sequence[Transcript]) -> str | None:
    """The first difference of two lists of transcripts, or None."""
    for episode, (one, other) in enumerate(zip(first, second, strict=True)):
        for turn, (a, b) in enumerate(zip(one, other, strict=True)):
            if a != b:
                return f"episode {episode}, turn {turn}: {shorten(a)} and {shorten(b)}"
    return None


def shorten(value: Any, most: int = 160) -> str:
    """A value as text, shortened to one line."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= most else text[: most - 3] + "..."


def play_stdin() -> None:
    """Play the `Scripts` of stdin, in a process of its own; transcripts to stdout."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Scripts)
    out, sys.stdout = sys.stdout, sys.stderr  # a world may print
    make = env_class(asked.entry_point)
    told = [play(construct(make, asked.env_kwargs), script) for script in asked.scripts]
    out.buffer.write(encode(told))


class RuleBroken(Exception):
    """The environment breaks a rule; the message states how.

    `at` is the method or attribute of the environment's class to correct. `warning` is for what may
    be intended.
    """

    def __init__(
        self, message: str, *, at: str = "_step", action: str | None = None, warning: bool = False
    ) -> None:
        super().__init__(message)
        self.at = at
        self.action = action
        self.warning = warning


class NotApplicable(Exception):
    """The rule does not apply to this environment."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in code that takes longer, where the system and the thread allow it."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not MAIN_THREAD:
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"it takes longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        # A test runner may have a timer of its own.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
