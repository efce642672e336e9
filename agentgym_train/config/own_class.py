"""Makes the object of a setting with a type, which may be a class of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from inspect import get_annotations
from typing import Any, Final

from agentgym_env.entry_points import load_named
from agentgym_env.errors import AgentGymError, BadRequest, ConfigError
from agentgym_train.config.checks import Typed, made, type_and_fields

_FIELDS: Final = "__dataclass_fields__"
"""What a dataclass has, and a class that only inherits from one does not have itself."""


def object_of(
    key: str, setting: Typed, kinds: Mapping[str, type], base: type, needs: str = ""
) -> Any:
    """What the setting `key` describes: one of `kinds`, or `package.module:Class` with this base.

    The class is a dataclass whose fields are those of the setting, or is called with them; it
    defines the method `needs`. Raises `ConfigError` for anything else.
    """
    name, values = type_and_fields(setting)
    kind = kinds.get(name) or _own(key, name, kinds, base, needs)
    own = [vars(each) for each in kind.__mro__ if each not in base.__mro__]
    inits = (_FIELDS in each for each in own if _FIELDS in each or "__init__" in each)
    by_fields = next(inits, True)  # whether the nearest `__init__` is a dataclass's
    if values and by_fields and get_annotations(kind) and _FIELDS not in vars(kind):
        raise ConfigError(f"{name} has fields and is not a dataclass; write `@dataclass` above it")
    if is_dataclass(kind) and by_fields:
        return made(kind, values, key, name)
    try:
        return kind(**values)
    except AgentGymError:
        raise
    except Exception as error:
        # The user's code may fail in any way.
        raise ConfigError(
            f"{key}: {name} cannot be made with {', '.join(values) or 'no fields'}: "
            f"{type(error).__name__}: {error}"
        ) from error


def imported(name: str, described: str) -> Any:
    """What `package.module:Class` names; a `ConfigError` calls it as it is described."""
    try:
        return load_named(name)
    except (BadRequest, ImportError) as error:
        raise ConfigError(f"cannot import {described}: {error}") from error


def _own(key: str, name: str, kinds: Mapping[str, Any], base: type, needs: str) -> Any:
    """The user's class."""
    if ":" not in name:
        raise ConfigError(
            f"{key} has no type {name!r:.80}; choose from {', '.join(kinds)}, or write "
            "package.module:Class"
        )
    kind = imported(name, f"{name!r} of {key}")
    if base not in getattr(kind, "__mro__", ()):
        raise ConfigError(
            f"{name} is not for {key}; write `class {name.rpartition(':')[2]}({base.__name__})` "
            f"with `from {base.__module__} import {base.__name__}`"
        )
    if needs and getattr(kind, needs) is getattr(base, needs):
        raise ConfigError(f"{name} does not define {needs}, which {key} needs")
    return kind
