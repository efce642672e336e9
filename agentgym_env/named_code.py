"""Named code: loads what `module:name` names, wherever that name was written.

Console scripts and child processes do not search the working directory. It is searched here as the
last place, and only for a module that is nowhere else, so a file in it shadows no installed module.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from agentgym_env.errors import BadRequest


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
