"""The keys of the configs: their types, defaults and descriptions, and flags for them."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import types
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import check_keys
from agentgym_train.config.files import read_yaml
from agentgym_train.config.read import CONFIGS
from agentgym_train.config.worlds import EXPLORED_KEYS, FROM_RUN, World

_SENTENCE = re.compile(r"(?<=[^.]\.)\s")


class ConfigKey(NamedTuple):
    """A key of a config file, in the words of YAML."""

    name: str
    type: str
    default: str
    """The default, or "required"."""
    about: str


def expand_flags(words: Sequence[str]) -> list[str]:
    """Write boolean flags as values: `--keep-reasoning` is `keep_reasoning=true`.

    `--no-keep-reasoning` is `keep_reasoning=false`. A boolean key takes the next word as its value
    only if that word is a boolean or null; any other key takes the next word whatever it is.
    """
    booleans = boolean_keys()
    known = {field.name for config in CONFIGS.values() for field in fields(config)}
    expanded, left = [], list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.removeprefix("--").partition("=")
        key = name.replace("-", "_")
        negated = key.removeprefix("no_") if key.startswith("no_") else ""
        next_is_value = bool(left) and _is_flag_value(left[0])
        if negated in booleans and word.startswith("--"):
            if equals or next_is_value:
                positive = name.removeprefix("no-").removeprefix("no_")
                raise ConfigError(
                    f"--{name} has no value; write --{positive}=true or --{positive}=false"
                )
            expanded.append(f"{negated}=false")
        elif equals or not word.startswith("--"):
            expanded.append(word)
        elif key in booleans:
            expanded.append(f"{key}={left.pop(0) if next_is_value else 'true'}")
        else:
            check_keys("", [key.partition(".")[0]], known)
            expanded += [word, *left[:1]]
            del left[:1]
    return expanded


def boolean_keys() -> frozenset[str]:
    """The keys of all methods that are true or false; a key has the same type in each of them."""
    return frozenset(
        name
        for config in CONFIGS.values()
        for name, hint in get_type_hints(config).items()
        if bool in (hint, *get_args(hint)) and get_origin(hint) in (None, Union, types.UnionType)
    )


def config_keys(method: str) -> list[ConfigKey]:
    """The keys of a method: its own, then those that all methods share."""
    required = {"model", "output_dir"} | ({"env"} if CONFIGS[method].trained_keys else set())
    return _keys_of(CONFIGS[method], required)


def world_keys(method: str) -> list[ConfigKey]:
    """The keys of an entry of `envs` that a method uses."""
    unused = EXPLORED_KEYS - CONFIGS[method].trained_keys
    return [
        key._replace(default="the run's") if key.name in FROM_RUN else key
        for key in _keys_of(World, {"env"})
        if key.name not in unused
    ]


def key_lines(method: str) -> list[str]:
    """A line about each key of a method, with the first sentence of its description.

    The keys of an entry of `envs` are indented below it.
    """
    lines = []
    for key in config_keys(method):
        lines.append(_line_of(key))
        if key.name == "envs":
            lines += [f"  {_line_of(inner, width=28)}" for inner in world_keys(method)]
    return lines


def _is_flag_value(word: str) -> bool:
    """Whether a word is true, false, yes, no, on, off or null in YAML."""
    return bool(re.fullmatch(r"[A-Za-z]+", word)) and isinstance(
        read_yaml(word), bool | types.NoneType
    )


def _keys_of(config: type, required: set[str]) -> list[ConfigKey]:
    hints, documentation = get_type_hints(config), _documentation(config)
    order = [name for kind in config.__mro__ for name in vars(kind).get("__annotations__", {})]
    found = []
    for field in sorted(fields(config), key=lambda field: order.index(field.name)):
        needed = field.name in required or field.default is field.default_factory is MISSING
        default = "required" if needed else _default(field)
        found.append(
            ConfigKey(field.name, _type_name(hints[field.name]), default, documentation[field.name])
        )
    return found


def _line_of(key: ConfigKey, width: int = 30) -> str:
    default = key.default if key.default == "required" else f"default {key.default}"
    about = _SENTENCE.split(key.about, maxsplit=1)[0]
    return f"{key.name:<{width}}  {key.type}; {default}. {about}"


def _documentation(config: type) -> dict[str, str]:
    """The docstring below each field, of the class itself or of what it extends."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__[:-1]):
        (definition,) = ast.parse(inspect.getsource(kind)).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[field.target.id] = inspect.cleandoc(str(below.value.value)).replace("\n", " ")
    return found


def _type_name(hint: Any) -> str:
    if hint is types.NoneType:
        return "null"
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(map(_type_name, get_args(hint)))
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) is list:
        return f"list of {_type_name(get_args(hint)[0]).replace(' | ', ' or ')}"
    if get_origin(hint) is dict:
        return "mapping"
    names = {bool: "true | false", float: "number", int: "integer", str: "text"}
    return names.get(hint, "mapping")


def _default(field: Field[Any]) -> str:
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if value != "" else '""'
