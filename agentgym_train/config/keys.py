"""The keys of the configs: their types, defaults and descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from agentgym_train.config.checks import Typed, type_hints
from agentgym_train.config.engines import ENGINES
from agentgym_train.config.options import documentation, first_sentence
from agentgym_train.config.read import CONFIGS
from agentgym_train.config.rl import TYPES
from agentgym_train.config.worlds import EXPLORED_KEYS, FROM_RUN, World
from agentgym_train.rollout.horizon import EVERY, SCHEDULES, Turns

_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "engine": ENGINES, "horizon": SCHEDULES, **{name: kinds for name, (_, kinds) in TYPES.items()},
}  # fmt: skip
"""Setting with a type -> its types."""


class ConfigKey(NamedTuple):
    """A key of a config file, in the words of YAML."""

    name: str
    type: str
    default: str
    """The default, or "required"."""
    about: str


def config_keys(method: str) -> list[ConfigKey]:
    """The keys of a method: its own, then those that all methods share."""
    required = {"model", "output_dir"} | ({"env"} if CONFIGS[method].trained_keys else set())
    return _keys_of(CONFIGS[method], required)


def inner_keys(method: str, name: str) -> list[ConfigKey]:
    """The keys within a key of a method, such as `eval`, the entries of `envs`, or `horizon`.

    The fields of an algorithm are known where torch is loaded.
    """
    if name == "envs":
        unused = EXPLORED_KEYS - CONFIGS[method].trained_keys
        return [
            key._replace(default="the run's") if key.name in FROM_RUN else key
            for key in _keys_of(World, {"env"})
            if key.name not in unused
        ]
    kind = get_type_hints(CONFIGS[method])[name]
    if is_dataclass(kind):
        return _keys_of(kind, set())  # type: ignore[arg-type]
    return _keys_of_types(_TYPES.get(name, {})) if kind in (Typed, Turns) else []


def key_lines(method: str) -> list[str]:
    """A line about each key of a method, with the first sentence of its description.

    The keys within a key are indented below it.
    """
    lines = []
    for key in config_keys(method):
        lines.append(_line_of(key))
        lines += [f"  {_line_of(inner, width=28)}" for inner in inner_keys(method, key.name)]
    return lines


def _keys_of(config: type, required: set[str]) -> list[ConfigKey]:
    hints, about = type_hints(config), documentation(config)
    order = [name for kind in config.__mro__ for name in vars(kind).get("__annotations__", {})]
    found = []
    for field in sorted(fields(config), key=lambda field: order.index(field.name)):
        if not field.init:
            continue
        needed = field.name in required or field.default is field.default_factory is MISSING
        default = "required" if needed else _default(field)
        found.append(
            ConfigKey(field.name, _type_name(hints[field.name]), default, about[field.name])
        )
    return found


def _keys_of_types(kinds: Mapping[str, Any]) -> list[ConfigKey]:
    """The fields of all types of a setting, each with the types that have it."""
    found: dict[str, ConfigKey] = {}
    having: dict[str, list[str]] = {}
    for kind, settings in kinds.items():
        for key in _keys_of(settings, set()):
            found.setdefault(key.name, key)
            having.setdefault(key.name, []).append(kind)
    if "every" in found:
        found["every"] = found["every"]._replace(default=str(EVERY))
        found["turns"] = found["turns"]._replace(type="integer >= 1 | list of integer >= 1")
    return [
        key._replace(about=f"Of {', '.join(having[key.name])}: {key.about}")
        for key in found.values()
    ]


def _line_of(key: ConfigKey, width: int = 30) -> str:
    default = key.default if key.default == "required" else f"default {key.default}"
    return f"{key.name:<{width}}  {key.type}; {default}. {first_sentence(key.about)}"


def _type_name(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        signs = {"ge": ">=", "gt": ">", "le": "<="}
        bounds = [(sign, getattr(inner[1], name)) for name, sign in signs.items()]
        limits = " and ".join(f"{sign} {limit}" for sign, limit in bounds if limit is not None)
        return f"{_type_name(inner[0])} {limits}"
    if origin in (Union, UnionType):
        return " | ".join(map(_type_name, inner))
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin is list:
        return f"list of {_type_name(inner[0]).replace(' | ', ' or ')}"
    names = {bool: "true | false", float: "number", int: "integer", str: "text", NoneType: "null"}
    return names.get(hint, "mapping")


def _default(field: Field[Any]) -> str:
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if is_dataclass(value):
        return "{}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if value != "" else '""'
