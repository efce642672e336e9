"""The registered environments, and what else installed distributions add to this package.

All are found through entry points, also those of this project, and imported when first used. The
groups:

```
agentgym.environments   "me/World-v0" = "my_world:World"; in brackets, if any: the extra that it
                        needs and its time limit, as in "my_world:World [web, max_episode_steps_50]"
agentgym.hosts          "inprocess" = a function that makes a host for environments in this process
agentgym.clients        "SCHEME" = a function that makes the environment at an address SCHEME://...
agentgym.commands       "name" = the function of a command of `agentgym`
```
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import os
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import gymnasium
from gymnasium.envs.registration import ENV_ID_RE

from agentgym_env.errors import BadRequest, EnvironmentFault, MissingExtra, UnknownEnvironment
from agentgym_env.text_env import TextEnv


def split_name(name: str) -> tuple[str, str]:
    """The module and the attribute of `module:name`; raises `BadRequest` for any other form."""
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not attribute.isidentifier():
        raise BadRequest(f"an entry point must look like module:Class, got {name!r}")
    return module, attribute


def load_named(name: str, *, search_here: bool = True) -> Any:
    """The object that `module:name` names.

    `search_here` False leaves out the working directory, for names of installed packages.
    Raises `BadRequest` for another form or an attribute that is not there, and `ImportError`.
    """
    module, attribute = split_name(name)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        is_module = f"{module}.".startswith(f"{error.name}.")
        if not (is_module and search_here):
            raise
        found = _import_from_here(module, error)
    if not hasattr(found, attribute):
        elsewhere = "; only its notebook or script has it" if module == "__main__" else ""
        raise BadRequest(f"{module} has no {attribute!r}{elsewhere}")
    return getattr(found, attribute)


def _import_from_here(module: str, not_found: ModuleNotFoundError) -> ModuleType:
    try:
        here = os.getcwd()
    except OSError:
        raise not_found from None  # the directory was removed
    if here in sys.path:
        raise not_found
    sys.path.append(here)
    try:
        return importlib.import_module(module)
    except BaseException:
        sys.path.remove(here)
        raise


logger = logging.getLogger(__name__)

ENVIRONMENTS: Final = "agentgym.environments"
_MAX_PROJECT_BYTES: Final = 100_000
HOSTS: Final = "agentgym.hosts"
CLIENTS: Final = "agentgym.clients"
COMMANDS: Final = "agentgym.commands"
_OURS: Final = "agentgym_"
"""Begins the modules of this project."""
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


_entries: dict[str, EnvEntry] = {}


def register(
    env_id: str, entry_point: str, *, extra: str | None = None, max_episode_steps: int | None = None
) -> None:
    """Register an environment by its id, in this library and in Gymnasium.

    `entry_point` is `module:Class`. The module must be importable in another process too, since
    the local server runs in one.
    """
    _add(EnvEntry(env_id, entry_point, extra, max_episode_steps))


def _add(entry: EnvEntry) -> None:
    if not ENV_ID_RE.fullmatch(entry.env_id):
        raise BadRequest(
            f"an environment id must look like namespace/Name-v0, got {entry.env_id!r}"
        )
    split_name(entry.entry_point)
    _entries[entry.env_id] = entry
    gymnasium.register(
        id=entry.env_id,
        entry_point="agentgym_env.remote:make_env",
        vector_entry_point="agentgym_env.vector:RemoteVectorEnv",
        max_episode_steps=entry.max_episode_steps,
        kwargs={"env_id": entry.env_id},
    )


def registered() -> tuple[EnvEntry, ...]:
    """All registered environments, sorted by id."""
    return tuple(_entries[env_id] for env_id in sorted(_entries))


def find(env_id: str) -> EnvEntry:
    """The entry of an id, or of a plain `module:Class`; raises `UnknownEnvironment`."""
    if env_id in _entries:
        return _entries[env_id]
    if ":" in env_id:
        split_name(env_id)
        # A server is told the class alone; what the class needs is known all the same.
        for entry in _entries.values():
            if entry.entry_point == env_id:
                return replace(entry, env_id=env_id, max_episode_steps=None)
        return EnvEntry(env_id, env_id)
    names = {plain_name(entry): entry for entry in _entries}
    close = difflib.get_close_matches(plain_name(env_id[:100]), names, n=3, cutoff=0.75)
    near = [names[name] for name in close]
    there = (
        f"there are {', '.join(_entries)}" if _entries else "reinstall agentgym-sdk, which has some"
    )
    hint = f"did you mean {' or '.join(near)}?" if near else there
    if folder := _declared_in(env_id):
        hint = f"{folder} declares it: pip install -e {folder}"
    raise UnknownEnvironment(f"no environment {env_id[:100]!r}; {hint}")


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
        if isinstance(declared, Mapping) and env_id in declared:
            return shlex.quote(f"./{folder}" if folder.name else ".")
    return ""


def full_id(name: str) -> str:
    """The full id for an id, `module:Class`, or a short name such as `textcraft`.

    Selects the newest of several versions. Raises `UnknownEnvironment`.
    """
    if ":" in name or name in _entries:
        return find(name).env_id
    wanted = name.lower()
    meant = [env_id for env_id in _entries if wanted in _short_names(env_id)]
    if len({env_id.rpartition("-v")[0] for env_id in meant}) > 1:
        raise UnknownEnvironment(f"{name!r} may be {' or '.join(sorted(meant))}; use the full id")
    if meant:
        return max(meant, key=lambda env_id: int(env_id.rpartition("-v")[2] or 0))
    return find(name).env_id


def env_class(env_id: str) -> type[TextEnv]:
    """The class behind an id; raises `UnknownEnvironment` or `MissingExtra`."""
    entry = find(env_id)
    is_registered = any(known.entry_point == entry.entry_point for known in _entries.values())
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


def register_all() -> None:
    """Register the environments of all installed distributions."""
    for point in plugins(ENVIRONMENTS):
        _register_entry(_entry_of(point))


def plugins(group: str) -> list[EntryPoint]:
    """The entry points of a group by name, those of this project first."""
    return sorted(
        _all_entry_points().select(group=group),
        key=lambda point: (not point.value.startswith(_OURS), point.name),
    )


def plugin(group: str, name: str) -> EntryPoint | None:
    """The entry point of that name, this project's if there are several; None if there is none."""
    return next((point for point in plugins(group) if point.name == name), None)


@cache
def _all_entry_points() -> Any:  # before Python 3.12 its class has another name
    # This reads a file of each installed distribution, so it is done once.
    return entry_points()


def _distribution_of(entry: EnvEntry) -> str:
    # Looked up for the error alone: to read a distribution's name takes a parser of mail.
    for point in plugins(ENVIRONMENTS):
        if point.dist is not None and _entry_of(point).entry_point == entry.entry_point:
            return point.dist.name
    return "agentgym-sdk"


def _entry_of(point: EntryPoint) -> EnvEntry:
    limits = [text for text in point.extras if text.startswith(_TIME_LIMIT)]
    extras = [text for text in point.extras if text not in limits]
    steps = limits[0].removeprefix(_TIME_LIMIT) if limits else ""
    return EnvEntry(
        point.name,
        point.value.partition("[")[0].strip(),
        extras[0] if extras else None,
        int(steps) if steps.isdecimal() else None,
    )


def _register_entry(entry: EnvEntry) -> None:
    if entry.env_id in _entries:
        if _entries[entry.env_id].entry_point != entry.entry_point:
            logger.warning("two environments have the id %s; the first one is used", entry.env_id)
        return
    try:
        _add(entry)
    except BadRequest as error:
        # A broken entry point of another distribution must not break this import.
        logger.warning("environment %s is not registered: %s", entry.env_id, error)


def plain_name(env_id: str) -> str:
    """The name without namespace and version, in lower case: `maze/My-v0` is `my`."""
    name = env_id.lower().rpartition("/")[2]
    return name.rpartition("-v")[0] or name


def _short_names(env_id: str) -> set[str]:
    """`maze/My-v0` is also `maze/my`, `my-v0`, `my` and, if there are no others, `maze`."""
    versioned = env_id.lower()
    plain = versioned.rpartition("-v")[0] or versioned
    parts = {text for whole in (versioned, plain) for text in (whole, whole.rpartition("/")[2])}
    return parts | {versioned.partition("/")[0]}
