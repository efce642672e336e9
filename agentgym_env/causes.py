"""Where an exception or a broken rule comes from: the author's file and line, and the action."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from agentgym_env.errors import AgentGymError, EnvironmentFault
from agentgym_env.text_env import TextEnv

_OURS = {"agentgym_env", "gymnasium", *sys.stdlib_module_names}
"""Packages whose lines are not the author's."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What an exception shows of its cause."""

    text: str
    """The exception in one line, with the task and the turn if they are known."""
    place: str | None
    """`file:line` of the author's code, or None."""
    action: str | None
    """The action that was applied, or None."""
    key: tuple[str, ...]
    """Equal for exceptions with the same cause."""


def cause_of(error: BaseException, package: str, env_class: type[TextEnv] | None) -> Cause:
    """The cause of an exception that an environment of the author's package raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if isinstance(error.__cause__, StopIteration):  # of a `next` in a generator, such as an expert
        frames += traceback.walk_tb(error.__cause__.__traceback__)
    own = [(frame, line) for frame, line in frames if _package_of(frame) == package]
    foreign = [(frame, line) for frame, line in frames if _package_of(frame) not in _OURS]
    place = None
    for frame, line in (own or foreign)[-1:]:
        place = show_place(frame.f_code.co_filename, line)
    if isinstance(error, SyntaxError) and error.filename:
        place = show_place(error.filename, error.lineno or 1)
    name = type(error).__name__
    # Without a line of the author's, only the message can distinguish two causes.
    key = (name, place) if place else (name, str(error))
    env, action, call = _call_of([frame for frame, _ in frames])
    where = ""
    if env is not None and env._task is not None:
        turn = ", in its reset" if call == "reset" else f", turn {env._turn + 1}"
        where = f" (task {env._task!r}{turn}{', in the expert' * (call == 'expert_action')})"
    if place is None and env_class is not None:
        place = place_of(
            env_class, {"reset": "_reset", "expert_action": "expert"}.get(call, "_step")
        )
    notes = " ".join([*getattr(error, "__notes__", []), ""])
    return Cause(f"{notes}{name}: {error}{where}", place, action, key)


@contextmanager
def in_one_line(entry_point: str, what: str) -> Iterator[None]:
    """Within, an exception of the author's code becomes an `EnvironmentFault` that names its line.

    `entry_point` is `module:Class`; `what` begins the message. Errors of this project, and modules
    that are missing, pass.
    """
    try:
        yield
    except (AgentGymError, ImportError):
        raise
    except Exception as error:
        cause = cause_of(error, entry_point.partition(":")[0].partition(".")[0], None)
        place = f" ({cause.place})" if cause.place else ""
        raise EnvironmentFault(
            f"{what}: {cause.text}{place}; `agentgym --debug` shows the traceback"
        ) from error


def place_of(env_class: type[TextEnv], attribute: str) -> str | None:
    """`file:line` of a method of the author's class, or of the class itself."""
    for found in (getattr(env_class, attribute, None), env_class):
        try:
            # The base classes' own methods are not the author's.
            module = str(getattr(found, "__module__", ""))
            if found is not None and module.partition(".")[0] not in _OURS:
                _, line = inspect.getsourcelines(found)
                return show_place(inspect.getfile(found), max(line, 1))
        except (OSError, TypeError):  # a class made by a function, or an attribute of data
            continue
    return None


def show_place(path: str, line: int) -> str:
    """`file:line`, relative to the working directory for a file below it."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the directory was removed, or is on another drive
        relative = path
    return f"{path if relative.startswith(os.pardir) else relative}:{line}"


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _call_of(frames: list[FrameType]) -> tuple[TextEnv | None, str | None, str]:
    """The environment of the innermost call of its interface, the action, and the call's name."""
    for frame in reversed(frames):
        name, values = frame.f_code.co_name, frame.f_locals
        env: Any = values.get("self")
        if name in ("reset", "step", "expert_action") and isinstance(env, TextEnv):
            action = values.get("action") if name == "step" else None
            return env, action if isinstance(action, str) else None, name
    return None, None, "reset"
