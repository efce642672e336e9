"""The environments of a run, `envs`; `env: ID` is short for a list of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from typing import Any, Final

import msgspec

from agentgym_env.errors import ConfigError
from agentgym_env.registry import full_id
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.checks import check_keys, check_number, check_numbers, check_types

Stages = int | list[int]
"""Maximum turns per episode: one number, or one for each stage of a horizon schedule."""

TRAINED_KEYS: Final = frozenset({"split", "horizon", "weight"})
"""Keys of an entry of `envs` about the episodes that RL and AgentEvol play to learn from."""
EXPLORED_KEYS: Final = TRAINED_KEYS | {"tasks", "min_reward"}
"""The same with those of AgentEvol alone."""
ONE_WORLD: Final = ("env", "env_kwargs", "servers")
"""Keys of a run that are short for `envs` with one entry."""
FROM_RUN: Final = frozenset(
    {
        "wrappers", "instruction", "split", "horizon",
        "eval_split", "eval_horizon", "eval_samples", "eval_per_category",
    }
)  # fmt: skip
"""Keys of an entry of `envs` whose value is the run's where it is null, 0 or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One of the environments of a run. What is null, 0 or empty is taken from the run."""

    env: str = ""
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
    """Split whose tasks are trained on or explored."""
    tasks: int = 0
    """Tasks explored per iteration, drawn anew each time; 0 uses all tasks of the split."""
    horizon: Stages = field(default_factory=list)
    """Maximum turns per episode: one number, or in RL stages."""
    min_reward: float | None = None
    """Learn from explored episodes with at least this reward; null learns from successes."""
    weight: float = 1.0
    """Relative frequency of its groups in RL, and of its rows in an epoch of AgentEvol, where 2
    uses each twice and 0.5 every other one."""
    eval_split: str = ""
    """Held-out split that is evaluated."""
    eval_horizon: int = 0
    """Maximum turns per evaluation episode."""
    eval_samples: int = 0
    """Episodes per held-out task."""
    eval_per_category: int = 0
    """Evaluate only this many tasks per category."""

    def __post_init__(self) -> None:
        if not self.env:
            raise ConfigError("an entry of envs has no env; write `envs: [{env: ID}]`")
        check_numbers(self)
        check_types(self)
        object.__setattr__(self, "horizon", stages_of(self.horizon))
        for turns in self.stages:
            check_number("horizon", turns, whole=True, minimum=1)
        named_wrappers(self.wrappers or [])

    @property
    def stages(self) -> list[int]:
        """The horizon of each stage, in turns; empty if no episodes are played to learn from."""
        return stages_of(self.horizon)

    @property
    def known_id(self) -> str:
        """The full id; an environment on a running server may be unknown here."""
        return self.env if self.servers else full_id(self.env)


def stages_of(horizon: Stages) -> list[int]:
    """The horizon of each stage: `30` is short for one stage, and 0 for none."""
    if isinstance(horizon, int):
        return [horizon] if horizon else []
    return horizon


def check_worlds(worlds: Any) -> None:
    """Raise `ConfigError` for `envs` that is not a list of mappings with known keys."""
    if not isinstance(worlds, list | tuple):
        raise ConfigError(f"envs must be a list, such as `[{{env: ID}}]`; got {str(worlds)[:80]!r}")
    for world in worlds:
        if isinstance(world, World):
            continue
        if not isinstance(world, Mapping):
            raise ConfigError(
                f"an entry of envs is {str(world)[:80]!r}; write `envs: [{{env: ID}}]`"
            )
        check_keys(" in envs", map(str, world), (f.name for f in fields(World)))


def read_worlds(worlds: Any, method: str, trained_keys: AbstractSet[str]) -> list[World]:
    """The entries of envs; Python code may write them as in YAML.

    Raises `ConfigError` for an invalid entry, for an environment that is named twice, since metrics
    and files have its id, and for a key about training that is none of the method's `trained_keys`.
    """
    check_worlds(worlds)
    try:
        found = [
            world if isinstance(world, World) else msgspec.convert(world, World) for world in worlds
        ]
    except msgspec.ValidationError as error:
        raise ConfigError(f"an entry of envs is invalid: {error}") from error
    for world in found:
        others = sorted(EXPLORED_KEYS - trained_keys)
        unused = [key for key in others if getattr(world, key) != _DEFAULTS[key]]
        if unused:
            raise ConfigError(
                f"{', '.join(unused)} in envs has no effect with method {method}; leave it out"
            )
    _check_once([world.known_id for world in found])
    return found


def file_name(env: str) -> str:
    """The id of an environment as a file name."""
    return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in env)


def _check_once(envs: Sequence[str]) -> None:
    twice = sorted({name for name in envs if envs.count(name) > 1})
    if twice:
        raise ConfigError(f"{twice[0]} is twice in envs; give it a higher weight instead")


_DEFAULTS: Final = {key: getattr(World(env="any"), key) for key in EXPLORED_KEYS}
