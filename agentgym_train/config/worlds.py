"""The environments of a run that has several: `envs` of RL and AgentEvol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import msgspec

from agentgym_env.errors import ConfigError
from agentgym_env.registry import full_id
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.checks import check_keys, check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RLWorld:
    """One of several environments of an RL run. What is null, 0 or empty is taken from the run."""

    env: str
    """Id of the environment."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, for the local server."""
    servers: list[str] = field(default_factory=list)
    """Addresses of running servers. Empty starts a local one."""
    wrappers: list[str | dict[str, Any]] | None = None
    """Gymnasium wrappers, innermost first."""
    instruction: str | None = None
    """System prompt. Null uses the run's, and if that is null the environment's own."""
    split: str = ""
    """Split whose tasks are trained on."""
    horizon: list[int] = field(default_factory=list)
    """Maximum turns per episode: one number, or stages."""
    weight: float = 1.0
    """Relative frequency of its groups."""
    eval_split: str = ""
    """Held-out split that is evaluated."""
    eval_horizon: int = 0
    """Maximum turns per evaluation episode; 0 uses the (last) training horizon."""
    eval_samples: int = 0
    """Episodes per held-out task."""
    eval_per_category: int = 0
    """Evaluate only this many tasks per category."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if isinstance(self.horizon, int):  # as in a YAML file
            object.__setattr__(self, "horizon", [self.horizon])
        named_wrappers(self.wrappers or [])


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One of several environments of a run. A value that is null or 0 is taken from the run."""

    env: str
    """Id of the environment."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, for the local server."""
    servers: list[str] = field(default_factory=list)
    """Addresses of running servers. Empty starts a local one."""
    split: str = "train"
    """Split whose tasks are explored."""
    tasks: int = 0
    """Tasks explored per iteration, drawn anew each time; 0 uses all tasks of the split."""
    horizon: int = 0
    """Maximum turns per episode, in exploration and evaluation."""
    min_reward: float | None = None
    """Learn from episodes with at least this reward; null learns from successes."""
    weight: float = 1.0
    """Relative frequency of its rows in an epoch: 2 uses each twice, 0.5 every other one."""
    eval_split: str = ""
    """Held-out split that is evaluated."""

    def __post_init__(self) -> None:
        check_numbers(self)


_W = TypeVar("_W", RLWorld, World)


def check_worlds(values: Mapping[str, Any], kind: type[World | RLWorld]) -> None:
    """Raise `ConfigError` for an unknown key of an environment in `envs`."""
    envs = values.get("envs")
    for world in envs if isinstance(envs, list) else []:
        if not isinstance(world, Mapping):
            raise ConfigError(
                f"an entry of envs is {world!r}; write `envs: [{{env: ID, horizon: 20}}]`"
            )
        check_keys(" in envs", map(str, world), (f.name for f in fields(kind)))


def read_worlds(worlds: Any, kind: type[_W]) -> list[_W]:
    """The entries of envs; Python code may write them as in YAML."""
    if not isinstance(worlds, list | tuple):
        raise ConfigError(f"envs must be a list, such as `[{{env: ID}}]`; got {str(worlds)[:80]!r}")
    found = []
    for world in worlds:
        if isinstance(world, kind):
            found.append(world)
            continue
        check_worlds({"envs": [world]}, kind)
        values = with_stages(world) if kind is RLWorld else world
        try:
            found.append(msgspec.convert(values, kind))
        except msgspec.ValidationError as error:
            raise ConfigError(f"an entry of envs is invalid: {error}") from error
    return found


def known_id(world: World | RLWorld) -> str:
    """The full id; an environment on a running server may be unknown here."""
    return world.env if world.servers or not world.env else full_id(world.env)


def check_once(envs: Sequence[str]) -> None:
    """Raise `ConfigError` if an environment is named twice: metrics and files have its id."""
    twice = sorted({name for name in envs if envs.count(name) > 1})
    if twice:
        raise ConfigError(f"{twice[0]} is twice in envs; give it a higher weight instead")


def with_stages(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """`horizon: 30` is short for one stage."""
    turns, envs = values.get("horizon"), values.get("envs")
    if isinstance(envs, list):
        check_worlds(values, RLWorld)
        values = {**values, "envs": [with_stages(world) for world in envs]}
    return {**values, "horizon": [turns]} if isinstance(turns, int) else values


def file_name(env: str) -> str:
    """The id of an environment as a file name."""
    return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in env)
