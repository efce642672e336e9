"""The registered environments: finds them and their classes by id or name, and constructs them."""

from __future__ import annotations

import difflib
import inspect
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

from agentgym_env.entry_points import ENVIRONMENTS, load_named, plugins, split_name
from agentgym_env.errors import BadRequest, EnvironmentFault, MissingExtra, UnknownEnvironment
from agentgym_env.text_env import TextEnv

_MAX_PROJECT_BYTES: Final = 100_000

_TIME_LIMIT: Final = "max_episode_steps_"


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """A registered environment."""

    env_id: str
    entry_point: str
    """`module:Class`, imported when the environment is first made."""
    extra: str | None = None
    """The extra of the distribution that installs the environment's dependencies."""
    max_episode_steps: int | None = None


entries: dict[str, EnvEntry] = {}
"""The environments by id; `agentgym_env.registration` adds them."""


def registered() -> tuple[EnvEntry, ...]:
    """All registered environments, sorted by id."""
    return tuple(entries[env_id] for env_id in sorted(entries))


def find(env_id: str) -> EnvEntry:
    """The entry of an id, or of a plain `module:Class`; raises `UnknownEnvironment`."""
    if env_id in entries:
        return entries[env_id]
    if ":" in env_id:
        split_name(env_id)
        # A server is told the class alone; what the class needs is known all the same.
        for entry in entries.values():
            if entry.entry_point == env_id:
                return replace(entry, env_id=env_id, max_episode_steps=None)
        return EnvEntry(env_id, env_id)
    names = {plain_name(entry): entry for entry in entries}
    close = difflib.get_close_matches(plain_name(env_id[:100]), names, n=3, cutoff=0.75)
    near = [names[name] for name in close]
    there = (
        f"there are {', '.join(entries)}" if entries else "reinstall agentgym-sdk, which has some"
    )
    hint = f"did you mean {' or '.join(near)}?" if near else there
    if folder := _declared_in(env_id):
        hint = f"{folder} declares it: pip install -e {folder}"
    raise UnknownEnvironment(f"no environment {env_id[:100]!r}; {hint}")


def full_id(name: str) -> str:
    """The full id for an id, `module:Class`, or a short name such as `textcraft`.

    Selects the newest of several versions. Raises `UnknownEnvironment`.
    """
    if ":" in name or name in entries:
        return find(name).env_id
    wanted = name.lower()
    meant = [env_id for env_id in entries if wanted in _short_names(env_id)]
    if len({env_id.rpartition("-v")[0] for env_id in meant}) > 1:
        raise UnknownEnvironment(f"{name!r} may be {' or '.join(sorted(meant))}; use the full id")
    if meant:
        return max(meant, key=lambda env_id: int(env_id.rpartition("-v")[2] or 0))
    return find(name).env_id


def env_class(env_id: str) -> type[TextEnv]:
    """The class behind an id; raises `UnknownEnvironment` or `MissingExtra`."""
    entry = find(env_id)
    is_registered = any(known.entry_point == entry.entry_point for known in entries.values())
    try:
        found = load_named(entry.entry_point, search_here=not is_registered)
    except ModuleNotFoundError as error:
        if entry.extra is not None:
            raise MissingExtra(
                f"{env_id} needs {error.name}: "
                f"pip install '{_distribution_of(entry)}[{entry.extra}]'"
            ) from error
        if not f"{entry.entry_point.partition(':')[0]}.".startswith(f"{error.name}."):
            raise UnknownEnvironment(
                f"{env_id} cannot be imported: it needs {error.name}, which is not installed"
            ) from error
        raise UnknownEnvironment(
            f"{env_id} cannot be imported (entry point {entry.entry_point}): {error}. Name a "
            "module that is installed or in the working directory"
        ) from error
    except BadRequest as error:
        raise UnknownEnvironment(f"{env_id} is {entry.entry_point}, but {error}") from error
    if not (isinstance(found, type) and issubclass(found, TextEnv)):
        raise UnknownEnvironment(
            f"{env_id} is {entry.entry_point}, which is not a TextEnv; check its entry point"
        )
    return found


def env_class_with(
    env_id: str, options: Mapping[str, Any], named: str | None = None
) -> type[TextEnv]:
    """The class behind an id; raises `BadRequest` for options that its constructor does not take.

    These are names that it lacks, and other values than true and false where the default is one of
    them. Errors say `named` instead of `env_id` if it is given.
    """
    found = env_class(env_id)
    parameters = inspect.signature(found).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return found
    for name, value in options.items():
        if name not in parameters:
            near = difflib.get_close_matches(str(name)[:100], parameters, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise BadRequest(
                f"unknown option {name} of {named or env_id}; {hint}available: "
                + ", ".join(parameters)
            )
        if isinstance(parameters[name].default, bool) and not isinstance(value, bool):
            raise BadRequest(
                f"option {name} of {named or env_id} is true or false, got {value!r:.80}"
            )
    return found


def construct(
    found: type[TextEnv], env_kwargs: Mapping[str, Any], render_mode: str | None = None
) -> TextEnv:
    """An environment of a class, whose constructor need not have the argument `render_mode`.

    Raises `EnvironmentFault` if the constructor does not call that of `TextEnv`.
    """
    # A server opens thousands of sessions without a mode, and a signature takes longer than most.
    if render_mode is not None and "render_mode" in inspect.signature(found).parameters:
        env_kwargs = {**env_kwargs, "render_mode": render_mode}
    env = found(**env_kwargs)
    if not hasattr(env, "env_errors"):
        raise EnvironmentFault(f"{found.__name__}.__init__ must call super().__init__()")
    if render_mode is not None:
        env.set_render_mode(render_mode)
    return env


def plain_name(env_id: str) -> str:
    """The name without namespace and version, in lower case: `maze/My-v0` is `my`."""
    name = env_id.lower().rpartition("/")[2]
    return name.rpartition("-v")[0] or name


def entry_of(point: EntryPoint) -> EnvEntry:
    """The environment that an entry point of `agentgym.environments` declares."""
    limits = [text for text in point.extras if text.startswith(_TIME_LIMIT)]
    extras = [text for text in point.extras if text not in limits]
    steps = limits[0].removeprefix(_TIME_LIMIT) if limits else ""
    return EnvEntry(
        point.name,
        point.value.partition("[")[0].strip(),
        extras[0] if extras else None,
        int(steps) if steps.isdecimal() else None,
    )


def _declared_in(env_id: str) -> str:
    """The folder, here or one below, whose pyproject.toml declares the environment, or ""."""
    for folder in (Path(), *sorted(path.parent for path in Path().glob("*/pyproject.toml"))):
        file = folder / "pyproject.toml"
        try:
            if not file.is_file() or file.stat().st_size > _MAX_PROJECT_BYTES:
                continue
            project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
            declared = project.get("entry-points", {}).get(ENVIRONMENTS, {})
        except (OSError, ValueError, AttributeError, RecursionError):  # not a valid one
            continue
        if isinstance(declared, Mapping) and any(
            env_id == name or env_id.lower() in _short_names(name)
            for name in declared
            if name not in entries
        ):
            return shlex.quote(f"./{folder}" if folder.name else ".")
    return ""


def _distribution_of(entry: EnvEntry) -> str:
    # Looked up for the error alone: to read a distribution's name takes a parser of mail.
    for point in plugins(ENVIRONMENTS):
        if point.dist is not None and entry_of(point).entry_point == entry.entry_point:
            return point.dist.name
    return "agentgym-sdk"


def _short_names(env_id: str) -> set[str]:
    """`maze/My-v0` is also `maze/my`, `my-v0`, `my` and, if there are no others, `maze`."""
    versioned = env_id.lower()
    plain = versioned.rpartition("-v")[0] or versioned
    parts = {text for whole in (versioned, plain) for text in (whole, whole.rpartition("/")[2])}
    return parts | {versioned.partition("/")[0]}
