"""The conformance rules that need no server, one function each."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import msgspec
from gymnasium.utils.env_checker import check_env
from msgspec import Struct

from agentgym_env.errors import EpisodeOver
from agentgym_env.launch import child_environment
from agentgym_env.main_module import importable
from agentgym_env.registry import construct, env_class, find
from agentgym_env.spaces import TextSpace
from agentgym_env.text_env import TaskSet, TextEnv
from agentgym_env.wire import JSON, decode, encode

T = TypeVar("T")
MAIN_THREAD: Final = threading.main_thread()


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


Transcript = list[Any]
"""The result of `reset`, then of each `step`, as plain JSON values."""


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


_TURNS = 12


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


EXPERT_TURNS = 1000
"""Turns after which the expert is not waited for."""

_SLOW_S = 10.0
_SLOW_STEP_S = 0.1
_SLOW_RESET_S = 1.0

_PROCESS_TIMEOUT_S = 300
_PLAY_STDIN = "from agentgym_env.conformance.rules import play_stdin; play_stdin()"

MEGABYTE = 2**20

GARBAGE: dict[str, str] = {
    "nothing": "",
    "spaces": " \t\n ",
    "zero bytes": "\x00\x00",
    "a lone surrogate": "\ud800",
    "emoji and right-to-left text": "🙂 مرحبا",
    "format strings": "%s %n {} {0} {0.__class__} ${HOME}",
    "code": "__import__('os').getcwd()",
    "markup": "<script>alert(1)</script>]]>--",
    "a path": "../../../../etc/passwd",
    "a very long number": "9" * 100_000,
    "deep brackets": "(" * 50_000,
    "1 MB of one letter": "a" * MEGABYTE,
    "1 MB of lines": "go north\n" * (MEGABYTE // 9),
    "1 MB of spaces": " " * MEGABYTE,
}


def passes_gymnasiums_checker(subject: Subject) -> str:
    """Gymnasium's checker passes without a warning."""
    env = subject.make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except AssertionError as error:
            raise RuleBroken(str(error)) from error
    # The environment's libraries may give warnings of their own.
    said = [str(w.message) for w in caught if "gymnasium" in str(w.filename)]
    if said:
        raise RuleBroken(said[0])
    return "no warning"


def the_class_and_its_tasks_are_valid(subject: Subject) -> str:
    """The environment can be made, and its attributes have the right types."""
    env = subject.make()
    make = type(env)
    for name in ("_reset", "_step"):
        if getattr(make, name) is getattr(TextEnv, name):
            raise RuleBroken(f"the class has no {name}", at="class")
    if not isinstance(getattr(env, "tasks", None), TaskSet):
        kind = type(getattr(env, "tasks", None)).__name__
        raise RuleBroken(f"tasks is a {kind}; use TaskSet({{'train': [...], ...}})", at="class")
    instruction = getattr(env, "instruction", None)
    if not isinstance(instruction, str) or not instruction.strip():
        raise RuleBroken(
            "instruction is empty; describe the task and the form of the actions", at="class"
        )
    for task in env.tasks.ids:
        if not task.strip():
            raise RuleBroken(f"the task id {task!r} is blank", at="class")
    for alias, task in env.tasks.aliases.items():
        if task not in env.tasks:
            raise RuleBroken(f"the alias {alias!r} names no task: {task!r}", at="class")
    return f"{len(env.tasks)} tasks"


def splits_are_disjoint(subject: Subject) -> str:
    """Each task is in one split, and the default split exists."""
    env = subject.make()
    seen: dict[str, str] = {}
    for name, ids in env.tasks.splits.items():
        for task in ids:
            if task in seen:
                raise RuleBroken(f"task {task!r} is in {seen[task]!r} and in {name!r}", at="class")
            seen[task] = name
    if not env.tasks.splits.get(env.default_split):
        raise RuleBroken(
            f"default_split {env.default_split!r} names no task; the splits are "
            f"{', '.join(map(repr, env.tasks.splits))}",
            at="class",
        )
    return ", ".join(f"{name} {len(ids)}" for name, ids in env.tasks.splits.items())


def tasks_are_held_out(subject: Subject) -> str:
    """There are tasks to evaluate on that no policy is trained on."""
    splits = subject.make().tasks.splits
    held_out = [name for name, ids in splits.items() if ids and name != "train"]
    if not held_out:
        raise RuleBroken(
            "every task is in 'train'; put some into a split 'test', so that an evaluation "
            "measures more than memory",
            at="class",
            # Tasks of an argument, such as a file of questions, may be meant for training alone.
            warning=bool(subject.env_kwargs),
        )
    return ", ".join(held_out)


def a_seed_gives_the_same_episode(subject: Subject) -> str:
    """A used and a fresh environment give the same episode."""
    env = subject.make()
    first = [play(env, script) for script in subject.scripts]
    again = [play(env, script) for script in reversed(subject.scripts)][::-1]
    _compare(first, again, "when its episodes are played in another order: ")
    fresh = [play(subject.make(), script) for script in subject.scripts]
    _compare(first, fresh, "in a fresh environment: ")
    return f"{len(first)} episodes, 3 times"


def processes_agree(subject: Subject) -> str:
    """Processes with other hash seeds give the same episode."""
    env = subject.make()
    here = [play(env, script) for script in subject.scripts]
    asked = Scripts(importable(subject.entry_point), dict(subject.env_kwargs), subject.scripts)
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PLAY_STDIN],
            input=msgspec.json.encode(asked),
            capture_output=True,
            env={**child_environment(), "PYTHONHASHSEED": hash_seed},
            timeout=_PROCESS_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise RuleBroken(f"the environment fails in another process: {' '.join(last)}")
        _compare(here, decode(done.stdout, list), f"in a process with hash seed {hash_seed}, ")
    return "2 other processes"


def spaces_contain_all_texts(subject: Subject) -> str:
    """Every observation and every available action is in its space."""
    env = subject.make()
    observations = actions = 0
    for script in subject.scripts:
        told = [env.reset(seed=script.seed, options={"task": script.task})[0]]
        for action in script.actions:
            proposed = env.available_actions() or []
            for text in (*proposed, action):
                actions += 1
                if text not in env.action_space:
                    raise RuleBroken(
                        f"action {shorten(text)} is not in {env.action_space}",
                        at="available_actions",
                    )
            told.append(env.step(action)[0])
        observations += len(told)
        for text in told:
            if text not in env.observation_space:
                raise RuleBroken(f"an observation of {len(text)} characters is not in "
                                 f"{env.observation_space}")  # fmt: skip
    return f"{observations} observations, {actions} actions"


def queries_change_nothing(subject: Subject) -> str:
    """`available_actions` and `expert_action` do not change the episode."""
    silent, asked = subject.make(), subject.make()
    for script in subject.scripts:
        expected = play(silent, script)
        told: Transcript = [asked.reset(seed=script.seed, options={"task": script.task})]
        for action in script.actions:
            for _ in range(2):
                asked.available_actions()
                if asked.has_expert():
                    asked.expert_action()
                    asked.expert_thought()
            told.append(asked.step(action))
        where = difference([expected], [plain(told)])
        if where:
            raise RuleBroken(
                f"task {script.task!r} changes when it is queried: {where}", at="available_actions"
            )
    return f"{len(subject.scripts)} episodes"


def a_step_outside_an_episode_is_an_error(subject: Subject) -> str:
    """Stepping before the first reset, or after the end, raises `EpisodeOver`."""
    env = subject.make()
    _must_refuse(env, "before the first reset")
    for script in subject.scripts:
        if _ends(env, subject, script.task, script.seed):
            _must_refuse(env, f"after the end of task {script.task!r}")
            env.reset(seed=script.seed, options={"task": script.task})
            return "before the first reset and after the end"
    raise NotApplicable("no episode of the sample ended; the rest was not checked")


def garbage_never_raises(subject: Subject) -> str:
    """Any text of a policy gets an observation within its space, in time."""
    env = subject.make()
    task = subject.sample[0]
    for name, text in GARBAGE.items():
        env.reset(seed=0, options={"task": task})
        began = time.monotonic()
        for action in (text, f"{_some_action(env)} {text}"):
            try:
                with interrupted_after(env.step_timeout_s):
                    observation, _, terminated, truncated, _ = env.step(action)
            except Exception as error:
                error.add_note(f"{name} raises")
                raise
            if observation not in env.observation_space:
                raise RuleBroken(
                    f"{name} is answered by {len(observation)} characters, which are not in "
                    f"{env.observation_space}; cut what is quoted",
                    action=action,
                )
            if terminated or truncated:
                env.reset(seed=0, options={"task": task})
        if time.monotonic() - began > _SLOW_S:
            raise RuleBroken(f"{name} takes longer than {_SLOW_S:g} s", action=text)
    return f"{len(GARBAGE)} kinds, up to 1 MB"


def sizes_and_times_are_in_bounds(subject: Subject) -> str:
    """Observations fit a policy's context, and steps do not hold up training."""
    resets, steps = subject.resets, subject.steps
    if not steps.calls:
        write_script(subject.make(), subject.sample[0], 0, 3, subject)
    longest = max(resets, steps, key=lambda measured: measured.longest)
    found = (
        f"longest observation {longest.longest} characters ({longest.longest_of}), slowest step "
        f"{_seconds(steps.slowest_s)} ({steps.slowest}), slowest reset "
        f"{_seconds(resets.slowest_s)}, mean {_seconds(steps.mean_s)} per step"
    )
    over = []
    if longest.longest > subject.max_observation:
        over.append(f"an observation is longer than {subject.max_observation} characters")
    if steps.slowest_s > subject.max_step_s:
        over.append(f"a step takes longer than {subject.max_step_s:g} s")
    if steps.mean_s > _SLOW_STEP_S or resets.mean_s > _SLOW_RESET_S:
        over.append(
            f"slow: {_seconds(steps.mean_s)} per step, {_seconds(resets.mean_s)} per reset; "
            "use --tasks and --sessions to check less"
        )
    if over:
        at = "_reset" if resets is longest and steps.slowest_s <= subject.max_step_s else "_step"
        raise RuleBroken(f"{'; '.join(over)}; {found}", at=at, warning=True)
    return found


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.01 else f"{1000 * value:.2g} ms"


def _compare(first: list[Transcript], second: list[Transcript], circumstance: str) -> None:
    where = difference(first, second)
    if where:
        raise RuleBroken(f"{circumstance}{where}", at="_reset" if ", turn 0:" in where else "_step")


def _must_refuse(env: TextEnv, when: str) -> None:
    try:
        env.step("x")
    except EpisodeOver:
        return
    except Exception as error:
        raise RuleBroken(
            f"a step {when} raises {type(error).__name__}, not EpisodeOver", at="step"
        ) from error
    raise RuleBroken(
        f"a step {when} does not raise EpisodeOver; leave step() to TextEnv", at="step"
    )


def _ends(env: TextEnv, subject: Subject, task: str, seed: int) -> bool:
    """Play until the episode ends; whether it did."""
    env.reset(seed=seed, options={"task": task})
    for _ in range(EXPERT_TURNS if env.has_expert() else 100):
        action = env.expert_action() if env.has_expert() else _some_action(env)
        if action is None:
            return False
        if any(env.step(action)[2:4]):
            return True
    return False


def _some_action(env: TextEnv) -> str:
    available = env.available_actions()
    return available[0] if available else TextSpace(seed=0).sample()
