"""Reads values from YAML and from `key=value` and `--key value` words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from agentgym_env.errors import BadRequest


def read_yaml(text: str) -> Any:
    """A YAML text in which 1e-6 is a number, as in YAML 1.2; PyYAML alone reads it as a text."""
    return yaml.load(text, Loader=_Loader)


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """`key=value`, `--key=value` and `--key value` words, each value read as YAML.

    The later of two words of one key wins. A key may be a path: `trl.beta`.
    """
    values: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        dashed = word.startswith("--")
        key, equals, value = word.removeprefix("--").partition("=")
        if not key or not (dashed or equals):
            raise BadRequest(f"{word!r} is no value of a config; write key=value or --key value")
        if not equals:
            if not left:
                raise BadRequest(f"--{key} has no value; write --{key} VALUE")
            value = left.pop(0)
        first, dot, rest = key.partition(".")
        path = first.replace("-", "_") + dot + rest
        values.pop(path, None)
        try:
            values[path] = read_yaml(value)
        except yaml.YAMLError as error:
            raise BadRequest(f"the value of {key} is no YAML: {value!r}") from error
    return values


def lay_over(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the overrides in their places; `trl.beta` is key beta of the mapping trl."""
    laid = dict(values)
    for path, value in overrides.items():
        first, dot, rest = path.partition(".")
        if not dot:
            laid[first] = value
            continue
        below = laid.get(first)
        if below is not None and not isinstance(below, Mapping):
            raise BadRequest(f"{first} is {below!r} and has no key {rest}; write {first}=VALUE")
        laid[first] = lay_over(below or {}, {rest: value})
    return laid


def refuse_unknown(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `BadRequest` for a name that is not known, with the names that it may have meant."""
    there = sorted(known)
    unknown = sorted(set(names) - set(there))
    if not unknown:
        return
    meant = [near[0] for name in unknown if (near := difflib.get_close_matches(name, there, n=1))]
    hint = f"did you mean {' and '.join(meant)}?" if len(meant) == len(unknown) else ""
    keys = "key" if len(unknown) == 1 else "keys"
    raise BadRequest(
        f"unknown {keys} {', '.join(unknown)}{what}; "
        + (hint or f"there are {', '.join(there)}" if there else "it has none")
    )


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
