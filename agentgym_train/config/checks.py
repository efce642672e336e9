"""Checks of settings: their keys, types and numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

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
"""Config keys of earlier versions, and their current names."""

MINIMUM: Final[Mapping[str, float]] = dict.fromkeys(
    (
        "turn_max_tokens", "max_tokens", "concurrency", "save_every", "eval_samples",
        "SFTConfig.eval_horizon", "DPOConfig.eval_horizon", "AgentEvolConfig.horizon",
        "CollectConfig.horizon", "horizon_every", "horizon_patience", "horizon_window",
        "max_staleness", "importance_sampling_cap", "importance_sampling_band",
        "prompts_per_step", "rows_per_step", "minibatches_per_rollout", "epochs_per_rollout",
        "pairs_per_step", "RLConfig.steps", "iterations", "samples", "max_turns",
        "max_episode_tokens", "most", "max_batch", "tensor_parallel_size", "cpu_cache_gb",
        "max_model_len", "max_num_seqs", "block_size", "nccl_port",
    ),
    1,
) | {"num_generations": 2, "min_reward": -inf, "CollectConfig.n": 1,
     "World.eval_samples": 0}  # fmt: skip
"""Minimum of numeric fields, by `field` or `Class.field`; 0 for the others."""

ABOVE_ZERO: Final = frozenset(
    {
        "epochs", "weight", "DPOConfig.beta", "reward_gap", "horizon_threshold",
        "gpu_memory_utilization", "request_timeout_s", "value_clip", "critic_learning_rate",
    }
)  # fmt: skip
"""Numeric fields that are above 0."""

MAXIMUM: Final[Mapping[str, float]] = {
    "async_steps": 1,
    "max_lost_rate": 1,
    "horizon_threshold": 1,
    "gpu_memory_utilization": 1,
    "nccl_port": 65535,
    "gamma": 1,
    "seed": 2**32 - 1,
    "lam": 1,
}


def check_keys(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ConfigError` for unknown keys, with a suggestion.

    `what` is the location of the keys, such as " in trainer_args"; empty for the config itself.
    """
    valid = sorted(known)
    unknown = sorted(set(names) - set(valid))
    if not unknown:
        return
    from agentgym_train.config.trl_keys import hint_for_trl

    renamed = {name: new for name in unknown if (new := RENAMED.get(name)) in valid}
    if renamed:
        raise ConfigError("; ".join(f"{old} was renamed to {new}" for old, new in renamed.items()))
    hints = [hint for name in unknown if (hint := hint_for_trl(name, valid))]
    if hints:
        raise ConfigError(f"unknown key {', '.join(unknown)}{what}: {'; '.join(hints)}")
    near = [close[0] for name in unknown if (close := difflib.get_close_matches(name, valid, n=1))]
    hint = f"did you mean {' and '.join(near)}?" if len(near) == len(unknown) else ""
    keys = "key" if len(unknown) == 1 else "keys"
    raise ConfigError(
        f"unknown {keys} {', '.join(unknown)}{what}; "
        + (hint or (f"valid keys: {', '.join(valid)}" if valid else "no keys are allowed here"))
    )


def check_arguments(where: str, values: Mapping[str, Any], kind: type) -> None:
    """Raise `ConfigError` for a key that a library lacks, or for a plain value of a wrong type.

    Mappings, lists and enumerations are left to the library.
    """
    hints = get_type_hints(kind)
    check_keys(f" in {where}", values, (f.name for f in fields(kind)))
    plain = {int, float, bool, str, type(None)}
    for name, value in values.items():
        if set(get_args(hints[name]) or (hints[name],)) <= plain:
            try:
                msgspec.convert(value, hints[name])
            except msgspec.ValidationError as error:
                raise ConfigError(f"{where}.{name}: {error}, got {value!r}") from error


def check_types(config: Any) -> None:
    """Raise `ConfigError` for a field of a dataclass whose value has another type than declared.

    A path is accepted for text.
    """
    hints = get_type_hints(type(config))
    for f in fields(config):
        value = getattr(config, f.name)
        if isinstance(value, Path):
            value = str(value)
            object.__setattr__(config, f.name, value)
        try:
            msgspec.convert(msgspec.to_builtins(value), hints[f.name])
        except (msgspec.ValidationError, TypeError) as error:
            raise ConfigError(f"{f.name}: {error}") from error


def check_numbers(config: Any) -> None:
    """Raise `ConfigError` for a numeric field of a dataclass that is invalid."""
    for f in fields(config):
        kind, _, optional = str(f.type).partition(" | ")
        value = getattr(config, f.name)
        if kind not in ("int", "float") or (value is None and optional):
            continue
        name = f"{type(config).__name__}.{f.name}"
        if name not in MINIMUM and name not in ABOVE_ZERO:
            name = f.name
        check_number(
            f.name,
            value,
            whole=kind == "int",
            minimum=MINIMUM.get(name, 0),
            above=name in ABOVE_ZERO,
            maximum=MAXIMUM.get(name, inf),
        )


def check_number(
    name: str,
    value: Any,
    *,
    whole: bool = False,
    minimum: float = 0,
    above: bool = False,
    maximum: float = inf,
) -> None:
    """Raise `ConfigError` unless `value` is a finite number within the bounds."""
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ConfigError(f"{name} is {kind}, got {value!r}")
    if not isfinite(value):
        raise ConfigError(f"{name} is a finite number, got {value}")
    if above and value <= minimum:
        raise ConfigError(f"{name} is above {minimum:g}, got {value:g}")
    if value < minimum:
        raise ConfigError(f"{name} is at least {minimum:g}, got {value}")
    if value > maximum:
        raise ConfigError(f"{name} is at most {maximum}, got {value}")


def choices_of(error: Exception, kind: type) -> str:
    """What a key may be, where it is one of a few texts."""
    key = str(error).rpartition("`$.")[2].rstrip("`")
    named = next((f.type for f in fields(kind) if f.name == key), None)
    hint = get_type_hints(kind)[key] if named is not None else None
    return f"; choose from {', '.join(get_args(hint))}" if get_origin(hint) is Literal else ""
