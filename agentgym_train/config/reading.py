"""Reads values from YAML and from `key=value` and `--key value` words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml

from agentgym_env.errors import ConfigError

RENAMED: Final[Mapping[str, str]] = {
    "steps_ahead": "async_steps",
    "oversample": "oversampling_ratio",
    "stragglers": "unfinished_groups",
    "group_size": "num_generations",
    "kl": "beta",
    "engine_correction": "importance_sampling_correction",
    "engine_correction_max": "importance_sampling_cap",
    "tokens_per_forward": "max_tokens_per_microbatch",
    "trl": "trainer_args",
    "least_reward": "min_reward",
    "least_turns": "min_turns",
    "most_turns": "max_turns",
    "most_tokens": "max_episode_tokens",
    "policy": "model",
}
"""Config keys of earlier versions, and their names today."""


def read_yaml(text: str) -> Any:
    """A YAML text in which 1e-6 is a number, as in YAML 1.2; PyYAML alone reads it as a text."""
    return yaml.load(text, Loader=_Loader)


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """`key=value`, `--key=value` and `--key value` words, each value read as YAML.

    The later of two words of one key wins. A key may be a path: `trainer_args.epsilon`.
    """
    values: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        dashed = word.startswith("--")
        key, equals, value = word.removeprefix("--").partition("=")
        if not key or not (dashed or equals):
            raise ConfigError(f"{word!r} is not a setting; write key=value or --key value")
        if not equals:
            if not left:
                raise ConfigError(f"--{key} has no value; write --{key} VALUE")
            value = left.pop(0)
        first, dot, rest = key.partition(".")
        path = first.replace("-", "_") + dot + rest
        values.pop(path, None)
        try:
            values[path] = read_yaml(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {key} is not valid YAML: {value!r}") from error
    return values


def merge(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the overrides applied; `trainer_args.epsilon` is a key of `trainer_args`."""
    laid = dict(values)
    for path, value in overrides.items():
        first, dot, rest = path.partition(".")
        if not dot:
            laid[first] = value
            continue
        below = laid.get(first)
        if below is not None and not isinstance(below, Mapping):
            raise ConfigError(f"{first} is {below!r} and has no key {rest}; write {first}=VALUE")
        laid[first] = merge(below or {}, {rest: value})
    return laid


def check_keys(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ConfigError` for an unknown key, with the key that was probably meant.

    `what` says where the keys are, such as " in trainer_args"; it is empty for the config itself.
    """
    valid = sorted(known)
    unknown = sorted(set(names) - set(valid))
    if not unknown:
        return
    renamed = {name: new for name in unknown if (new := RENAMED.get(name)) in valid}
    if renamed:
        raise ConfigError("; ".join(f"{old} was renamed to {new}" for old, new in renamed.items()))
    near = [close[0] for name in unknown if (close := difflib.get_close_matches(name, valid, n=1))]
    hint = f"did you mean {' and '.join(near)}?" if len(near) == len(unknown) else ""
    keys = "key" if len(unknown) == 1 else "keys"
    raise ConfigError(
        f"unknown {keys} {', '.join(unknown)}{what}; "
        + (hint or (f"valid keys: {', '.join(valid)}" if valid else "no keys are allowed here"))
    )


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
