"""Which environments there are: the built-in ones, and those of other distributions.

A distribution adds environments through the entry-point group `agentgym.environments`, with the
id as the name and `module:Class` as the value. Nothing is imported until it is made.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Final

import gymnasium
from gymnasium.envs.registration import ENV_ID_RE

from agentgym_env.errors import BadRequest, MissingExtra, UnknownEnvironment
from agentgym_env.text_env import TextEnv


def split_name(name: str) -> tuple[str, str]:
    """The module and the attribute of `module:name`; raises `BadRequest` for any other form."""
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not attribute.isidentifier():
        raise BadRequest(f"an entry point looks like module:Class, got {name!r}")
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
        raise BadRequest(f"{module} has no {attribute!r}")
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

ENTRY_POINT_GROUP: Final = "agentgym.environments"


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """One environment that can be made by its id."""

    env_id: str
    entry_point: str
    """`module:Class`, imported when the environment is first made."""
    extra: str | None = None
    """The extra of this distribution that brings what the environment needs."""
    max_episode_steps: int | None = None


BUILT_IN: Final = (
    EnvEntry("agentgym/BabyAI-v0", "agentgym_servers.worlds.babyai.env:BabyAI", "babyai", 100),
    EnvEntry("agentgym/BrowserGym-v0", "agentgym_servers.worlds.browsergym:BrowserGym", "web", 30),
    EnvEntry("agentgym/MiniWoB-v0", "agentgym_servers.worlds.miniwob.env:MiniWoB", "web", 15),
    EnvEntry(
        "agentgym/SciWorld-v0", "agentgym_servers.worlds.sciworld.env:SciWorld", "sciworld", 100
    ),
    EnvEntry("agentgym/Search-v0", "agentgym_servers.worlds.search.env:Search", "search", 10),
    EnvEntry(
        "agentgym/TextCraft-v0", "agentgym_servers.worlds.textcraft.env:TextCraft", "textcraft", 50
    ),
    EnvEntry("agentgym/WebArena-v0", "agentgym_servers.worlds.webarena:WebArena", "web", 30),
    # No world of its own: whatever an OpenEnv server serves.
    EnvEntry("agentgym/OpenEnv-v0", "agentgym_adapters.openenv_env:OpenEnv", "openenv"),
)

_entries: dict[str, EnvEntry] = {}


def register(
    env_id: str, entry_point: str, *, extra: str | None = None, max_episode_steps: int | None = None
) -> None:
    """Make an environment known by an id, to this library and to Gymnasium.

    `entry_point` is `module:Class`. The module must be importable in another process too, since
    the local server runs in one.
    """
    if not ENV_ID_RE.fullmatch(env_id):
        raise BadRequest(f"an environment id looks like namespace/Name-v0, got {env_id!r}")
    split_name(entry_point)
    _entries[env_id] = EnvEntry(env_id, entry_point, extra, max_episode_steps)
    gymnasium.register(
        id=env_id,
        entry_point="agentgym_env.remote:make_env",
        vector_entry_point="agentgym_env.vector:RemoteVectorEnv",
        max_episode_steps=max_episode_steps,
        kwargs={"env_id": env_id},
    )


def registered() -> tuple[EnvEntry, ...]:
    """Every environment known, by id."""
    return tuple(_entries[env_id] for env_id in sorted(_entries))


def find(env_id: str) -> EnvEntry:
    """The entry of an id, or of a plain `module:Class`; raises `UnknownEnvironment`."""
    if env_id in _entries:
        return _entries[env_id]
    if ":" in env_id:
        split_name(env_id)
        # A server is told the class alone; what the class needs is known all the same.
        known = (entry.extra for entry in _entries.values() if entry.entry_point == env_id)
        return EnvEntry(env_id, env_id, next(known, None))
    near = difflib.get_close_matches(env_id[:100], _entries, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_entries)}"
    raise UnknownEnvironment(f"no environment {env_id[:100]!r}; {hint}")


def full_id(name: str) -> str:
    """The id a command's user means: an id, `module:Class`, or a short name such as `textcraft`.

    Of several versions the newest is meant. Raises `UnknownEnvironment`.
    """
    if ":" in name or name in _entries:
        return find(name).env_id
    wanted = name.lower()
    meant = [env_id for env_id in _entries if wanted in _short_names(env_id)]
    if len({env_id.rpartition("-v")[0] for env_id in meant}) > 1:
        raise UnknownEnvironment(f"{name!r} may be {' or '.join(sorted(meant))}; give the whole id")
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
                f"{env_id} needs {error.name}: pip install 'agentgym-sdk[{entry.extra}]'"
            ) from error
        raise UnknownEnvironment(
            f"{env_id} cannot be imported (entry point {entry.entry_point}): {error}. Name a "
            "module that is installed or in the working directory"
        ) from error
    except BadRequest as error:
        raise UnknownEnvironment(f"{env_id} is {entry.entry_point}, but {error}") from error
    if not (isinstance(found, type) and issubclass(found, TextEnv)):
        raise UnknownEnvironment(
            f"{env_id} is to be {entry.entry_point}, which is no TextEnv; see its entry point"
        )
    return found


def register_all() -> None:
    """Register the built-in environments and those of installed distributions, once."""
    for entry in BUILT_IN:
        _register_entry(entry)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        _register_entry(EnvEntry(point.name, point.value))


def _register_entry(entry: EnvEntry) -> None:
    if entry.env_id in _entries:
        if _entries[entry.env_id].entry_point != entry.entry_point:
            logger.warning("two environments are called %s; the first one is kept", entry.env_id)
        return
    try:
        register(
            entry.env_id,
            entry.entry_point,
            extra=entry.extra,
            max_episode_steps=entry.max_episode_steps,
        )
    except BadRequest as error:
        # Somebody's broken entry point must not keep everything else from being imported.
        logger.warning("environment %s is left out: %s", entry.env_id, error)


def _short_names(env_id: str) -> set[str]:
    """`maze/My-v0` is also `maze/my`, `my-v0`, `my` and, if there are no others, `maze`."""
    versioned = env_id.lower()
    plain = versioned.rpartition("-v")[0] or versioned
    parts = {text for whole in (versioned, plain) for text in (whole, whole.rpartition("/")[2])}
    return parts | {versioned.partition("/")[0]}
