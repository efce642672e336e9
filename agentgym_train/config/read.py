"""Reads a config: a YAML file with `key=value` overrides, and the method that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import check_keys, kinds_of, type_hints
from agentgym_train.config.files import STARTER, local_path, read_yaml, starters
from agentgym_train.config.learn import AgentEvolConfig, DPOConfig, SFTConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.worlds import ONE_WORLD

_C = TypeVar("_C", bound=RunConfig)

DEFAULT: Final = "rl"

CONFIGS: Final[Mapping[str, type[RunConfig]]] = {
    "rl": RLConfig,
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "evolve": AgentEvolConfig,
}

_MAX_VALUES: Final = 100_000
"""Values of a config file."""


def read_method_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of any method from a YAML file, with `key=value` overrides applied."""
    return method_config(read_values(path, overrides))


def method_config(values: Mapping[str, Any]) -> RunConfig:
    """The config of the method that the values name; RL is the default.

    Raises `ConfigError` for an unknown key, a wrong value, or a key that is missing.
    """
    method = values.get("method", DEFAULT)
    if not isinstance(method, str) or method not in CONFIGS:
        raise ConfigError(f"no method {method!r}; choose from {', '.join(CONFIGS)}")
    kind = CONFIGS[method]
    known = {f.name for f in fields(kind)}
    inner = sorted(kind.trained_keys & values.keys() - known)
    if inner:
        raise ConfigError(
            f"{inner[0]} is a key of an entry of envs: write `envs: [{{env: ID, {inner[0]}: "
            f"{str(values[inner[0]])[:40]}}}]` instead of env"
        )
    check_keys("", values, known)
    needed = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise ConfigError(f"invalid config: missing {' and '.join(missing)}")
    config = kind(**values)
    config.check_required()
    return config


def read_config(path: Path, overrides: Sequence[str] = ()) -> RLConfig:
    """An RL config from a YAML file, with `key=value` overrides applied."""
    return config_from(read_values(path, overrides))


def config_from(values: Mapping[str, Any]) -> RLConfig:
    """An RL config from plain values; raises `ConfigError` as `method_config` does."""
    config = method_config(values)
    if not isinstance(config, RLConfig):
        raise ConfigError(f"an RL config is needed here, got method {config.method}")
    return config


def stored_config(
    path: Path,
    values: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], _C] = method_config,  # type: ignore[assignment]
) -> _C:
    """The config in the run.json of a run's folder; an error names the file to edit."""
    try:
        return read(values)
    except ConfigError as error:
        raise ConfigError(
            f"the config in {path}/run.json is not one of this version: {error}. Edit it in "
            "run.json and config.yaml, or start a new run"
        ) from error


def read_values(path: Path, overrides: Sequence[str] = (), list_key: str = "") -> dict[str, Any]:
    """The values of a YAML file, with `key=value` overrides applied.

    With `list_key`, a file that is a list has the value of this key alone.
    """
    file = local_path(path)
    if file.is_dir():
        raise ConfigError(f"{path} is a folder; name a config file in it")
    if not file.is_file():
        configs = [name for name in starters() if name.endswith(".yaml")]
        raise ConfigError(f"no config file {path}; the package contains {', '.join(configs)}")
    try:
        values = read_yaml(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if _has_too_many(values):
        raise ConfigError(f"{path} has more than {_MAX_VALUES:,} values; aliases count as often")
    if list_key and isinstance(values, list):
        values = {list_key: values}
    if not isinstance(values, dict):
        example = f"{list_key}: [...]" if list_key else "steps: 100"
        raise ConfigError(f"{path} has no keys and values; write lines such as `{example}`")
    if "compute_environment" in values:
        raise ConfigError(
            f"{path} is a config file of accelerate; name a training config first and pass this "
            f"one as an option: agentgym train CONFIG --accelerate {path}"
        )
    given = parse_overrides(overrides)
    if "envs" in given:  # instead of the file's
        values = {key: value for key, value in values.items() if key not in ONE_WORLD}
    elif "env" in given:
        values = {key: value for key, value in values.items() if key != "envs"}
    return merge(values, given)


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value`, `--key=value`, `--key value`, and the flags of keys that are booleans.

    `--keep-reasoning` is true and `--no-keep-reasoning` false. Values are parsed as YAML. If a key
    is repeated, the last value wins. A key may be a path: `trainer_args.epsilon`.
    """
    values: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        dashed = word.startswith("--")
        name, equals, value = word.removeprefix("--").partition("=")
        if not name or not (dashed or equals):
            raise ConfigError(f"{word!r} is not a setting; write key=value or --key value")
        first, dot, rest = name.partition(".")
        first = first.replace("-", "_")
        free = first in ("env_kwargs", "chat_template_kwargs")
        path = first + dot + (rest if free else rest.replace("-", "_"))
        if not equals:
            path, value = _flag_or_value(path, left)
        values.pop(path, None)
        try:
            # In YAML, text that ends with a colon is a mapping.
            values[path] = value if value.startswith(STARTER) else read_yaml(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {name} is not valid YAML: {value!r}") from error
    return values


def _flag_or_value(key: str, left: list[str]) -> tuple[str, str]:
    """(key, value) of `--key`, which may take the next word: a flag only true, false or null."""
    known = {f.name for config in CONFIGS.values() for f in fields(config)}
    positive = key.removeprefix("no_")
    # Which fields a type has, and which are true or false, is not known here.
    is_inner = "." in key and (not left or left[0].startswith("--"))
    if positive != key and (
        positive in boolean_keys() or ("." in key and positive.partition(".")[0] in known)
    ):
        return positive, "false"
    if key in boolean_keys() or is_inner:
        has_value = bool(left) and left[0].lower() in ("true", "false", "null")
        return key, left.pop(0) if has_value else "true"
    check_keys("", [key.partition(".")[0]], known)
    if not left:
        raise ConfigError(f"--{key} has no value; write --{key} VALUE")
    return key, left.pop(0)


@cache
def boolean_keys() -> frozenset[str]:
    """The keys of all methods that are true or false, such as `eval.before`.

    A key has the same type in each method.
    """
    return frozenset(key for config in CONFIGS.values() for key in _booleans(config))


def _booleans(config: type, place: str = "") -> Iterator[str]:
    for name, hint in type_hints(config).items():
        if is_dataclass(hint):
            yield from _booleans(hint, f"{place}{name}.")  # type: ignore[arg-type]
        elif bool in kinds_of(hint):
            yield place + name


def merge(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the overrides applied; `trainer_args.epsilon` is a key of `trainer_args`.

    `algorithm.lam` is a field of the algorithm, also if that is a text in `values`.
    """
    laid = dict(values)
    for path, value in overrides.items():
        first, dot, rest = path.partition(".")
        if not dot:
            laid[first] = value
            continue
        below = laid.get(first)
        if first == "horizon" and not isinstance(below, Mapping | None):
            below = {"turns": below}
        elif isinstance(below, str):
            below = {"type": below}
        if below is not None and not isinstance(below, Mapping):
            raise ConfigError(f"{first} is {below!r} and has no key {rest}; write {first}=VALUE")
        laid[first] = merge(below or {}, {rest: value})
    return laid


def _has_too_many(values: Any) -> bool:
    """Whether there is more in it than in any config: a few aliases can stand for billions."""
    pending, count = [values], 0
    while pending and count <= _MAX_VALUES:
        value = pending.pop()
        count += 1
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return count > _MAX_VALUES
