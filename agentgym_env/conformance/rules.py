"""The conformance rules that need no server, one function each."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings

import msgspec
from gymnasium.utils.env_checker import check_env

from agentgym_env.conformance.subject import (
    EXPERT_TURNS,
    NotApplicable,
    RuleBroken,
    Scripts,
    Subject,
    Transcript,
    difference,
    interrupted_after,
    plain,
    play,
    shorten,
    write_script,
)
from agentgym_env.errors import EpisodeOver
from agentgym_env.launch import child_environment
from agentgym_env.main_module import importable
from agentgym_env.spaces import TextSpace
from agentgym_env.text_env import TaskSet, TextEnv
from agentgym_env.wire import decode

_SLOW_S = 10.0

_SLOW_STEP_S = 0.1

_SLOW_RESET_S = 1.0

_PROCESS_TIMEOUT_S = 300

_PLAY_STDIN = "from agentgym_env.conformance.subject import play_stdin; play_stdin()"

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
