"""The environments of a run, `envs`; `env: ID` is short for a list of one."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agentgym_env.errors import ConfigError
from agentgym_env.registry import full_id
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.checks import (
    AboveZero,
    Count,
    NonNegative,
    Positive,
    Settings,
    check_fields,
)
from agentgym_train.rollout.horizon import Turns, normal_horizon, stages_of

TRAINED_KEYS: Final = frozenset({"split", "horizon", "weight"})
"""Keys of an entry of `envs` about the episodes that RL and AgentEvol play to learn from."""
EXPLORED_KEYS: Final = TRAINED_KEYS | {"tasks", "min_reward"}
"""The same with those of AgentEvol alone."""
ONE_WORLD: Final = ("env", "env_kwargs", "servers")
"""Keys of a run that are short for `envs` with one entry."""
FROM_RUN: Final = frozenset({"wrappers", "instruction", "split", "horizon", "eval"})
"""Keys of an entry of `envs` whose value is the run's where it is null, 0 or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldEvalSettings(Settings):
    """The evaluation in one of the environments; what is 0 or empty is taken from the run."""

    split: str = ""
    """Held-out split that is evaluated."""
    horizon: Count = 0
    """Maximum turns per evaluation episode; 0 uses the (last) training horizon, or 30 without."""
    samples: Count = 0
    """Episodes per held-out task."""
    per_category: Count = 0
    """Evaluate only this many tasks per category; 0 evaluates all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings(WorldEvalSettings):
    """The evaluations before and after training."""

    split: str = "test"
    samples: Positive = 1
    temperature: NonNegative = 1.0
    """Sampling temperature in evaluation; 0 is greedy."""
    before: bool = True
    """Evaluate before training."""
    after: bool = True
    """Evaluate after training."""
    compare: list[str] = field(default_factory=list)
    """Other policies that the evaluation after training is compared with, on the same episodes:
    `expert`, `random`, or a model's folder or hub id; `LABEL=POLICY` gives it a name."""

    def __post_init__(self) -> None:
        WorldEvalSettings.__post_init__(self)
        if isinstance(self.compare, list) and len(set(self.compare)) < len(self.compare):
            raise ConfigError("eval.compare names a policy twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class World(Settings):
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
    tasks: Count = 0
    """Tasks explored per iteration, drawn anew each time; 0 uses all tasks of the split."""
    horizon: Turns = field(default_factory=list)
    """Maximum turns per episode, in RL as the run's `horizon`: numbers alone are used with the
    run's `type`."""
    min_reward: float | None = None
    """Learn from explored episodes with at least this reward; null learns from successes."""
    weight: AboveZero = 1.0
    """Relative frequency of its groups in RL, and of its rows in an epoch of AgentEvol, where 2
    uses each twice and 0.5 every other one."""
    eval: WorldEvalSettings = field(default_factory=WorldEvalSettings)
    """The evaluation in this environment: split, horizon, samples and per_category."""

    def __post_init__(self) -> None:
        if not self.env:
            raise ConfigError("an entry of envs has no env; write `envs: [{env: ID}]`")
        check_fields(self)
        object.__setattr__(self, "horizon", normal_horizon(self.horizon) if self.horizon else [])
        if any(turns < 1 for turns in self.stages):
            raise ConfigError(f"horizon is at least 1, got {min(self.stages)}")
        named_wrappers(self.wrappers or [])

    @property
    def stages(self) -> list[int]:
        """The horizon of each stage, in turns; empty if no episodes are played to learn from."""
        return stages_of(self.horizon)

    def only_evaluated(self) -> World:
        """The environment without what concerns the episodes that are played to learn from."""
        return replace(self, **_DEFAULTS)

    @property
    def known_id(self) -> str:
        """The full id; an environment on a running server may be unknown here."""
        return self.env if self.servers else full_id(self.env)


def check_worlds(worlds: Sequence[World], method: str, trained_keys: AbstractSet[str]) -> None:
    """Raise `ConfigError` for entries of envs that do not fit together, or the method.

    No environment may be named twice, since metrics and files have its id, and no key about
    training may be none of the method's `trained_keys`.
    """
    for world in worlds:
        others = sorted(EXPLORED_KEYS - trained_keys)
        unused = [key for key in others if getattr(world, key) != _DEFAULTS[key]]
        if unused:
            raise ConfigError(
                f"{', '.join(unused)} in envs has no effect with method {method}; leave it out"
            )
    names = [world.known_id for world in worlds]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{twice[0]} is twice in envs; give it a higher weight instead")


def env_file_name(env: str) -> str:
    """The id of an environment as a file name."""
    return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in env)


_DEFAULTS: Final = {key: getattr(World(env="any"), key) for key in EXPLORED_KEYS}
