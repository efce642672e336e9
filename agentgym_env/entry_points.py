"""Finds objects by name: `module:name`, and the entry points of installed distributions.

Entry points are imported when first used, also those of this project. The groups:

```
agentgym.environments   "me/World-v0" = "my_world:World"; in brackets, if any: the extra that it
                        needs and its time limit, as in "my_world:World [web, max_episode_steps_50]"
agentgym.hosts          "inprocess" = a function that makes a host for environments in this process
agentgym.clients        "SCHEME" = a function that makes the environment at an address SCHEME://...
agentgym.directories    "SCHEME" = a function that makes the directory of servers at SCHEME://...
agentgym.commands       "name" = the function of a command of `agentgym`
agentgym.agents         "kind" = a kind of black-box agent: agentgym_train/rollout/black_box.py
```
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from types import ModuleType
from typing import Any, Final

from agentgym_env.errors import BadRequest

ENVIRONMENTS: Final = "agentgym.environments"

HOSTS: Final = "agentgym.hosts"

CLIENTS: Final = "agentgym.clients"

COMMANDS: Final = "agentgym.commands"

AGENTS: Final = "agentgym.agents"

_DISTRIBUTION: Final = "agentgym-sdk"
"""This project, whose entry points no other can replace."""


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


def plugins(group: str) -> list[EntryPoint]:
    """The entry points of a group by name, those of this project first."""
    return sorted(
        _all_entry_points().select(group=group),
        key=lambda point: (point not in _own_entry_points(), point.name),
    )


def plugin(group: str, name: str) -> EntryPoint | None:
    """The entry point of that name, this project's if there are several; None if there is none."""
    return next((point for point in plugins(group) if point.name == name), None)


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


@cache
def _own_entry_points() -> frozenset[EntryPoint]:
    try:
        return frozenset(distribution(_DISTRIBUTION).entry_points)
    except PackageNotFoundError:
        return frozenset()


@cache
def _all_entry_points() -> Any:  # before Python 3.12 its class has another name
    # This reads a file of each installed distribution, so it is done once.
    return entry_points()
