"""Advantage estimators, found by name or as `package.module:Class`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Final

from agentgym_env.errors import ConfigError
from agentgym_train.algorithms.base import Algorithm, LossSettings, TokenBatch
from agentgym_train.algorithms.gae import (
    PPO,
    ActorCritic,
    CriticTargets,
    GiGPO,
    TurnGAE,
    TurnReturns,
    value_loss,
)
from agentgym_train.algorithms.grpo import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    RLOO,
    DrGRPO,
    ReinforcePP,
    ReinforcePPBaseline,
)
from agentgym_train.config.checks import Typed, check_keys, imported, made, type_and_fields

__all__ = [
    "ALGORITHMS",
    "GRPO",
    "ActorCritic",
    "Algorithm",
    "CriticTargets",
    "LossSettings",
    "TokenBatch",
    "make_algorithm",
    "make_loss",
    "value_loss",
]

ALGORITHMS: Final[Mapping[str, type[Algorithm]]] = {
    "grpo": GRPO,
    "dapo": DAPO,
    "dr_grpo": DrGRPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "rloo": RLOO,
    "reinforce_pp": ReinforcePP,
    "reinforce_pp_baseline": ReinforcePPBaseline,
    "ppo": PPO,
    "turn_returns": TurnReturns,
    "turn_gae": TurnGAE,
    "gigpo": GiGPO,
}


_LOSS_FIELDS: Final = frozenset(f.name for f in fields(LossSettings))


def make_algorithm(setting: Typed) -> Algorithm:
    """The algorithm that a config's `algorithm` describes; raises `ConfigError` for another."""
    name, values = type_and_fields(setting)
    values = {key: value for key, value in values.items() if key != "loss"}
    if name == "bnpo":
        raise ConfigError("algorithm bnpo is gone: it was grpo in other words; write grpo")
    kind: Any = ALGORITHMS.get(name) or _checked(name, _imported(name))
    own = {f.name for f in fields(kind)} if is_dataclass(kind) else set()
    for key in values:
        if key in _LOSS_FIELDS and key not in own:
            raise ConfigError(
                f"algorithm.{key} is a setting of the loss; write algorithm: {{type: {name}, loss: "
                f"{{{key}: {values[key]}}}}}"
            )
    if not is_dataclass(kind):
        check_keys(f" in algorithm of type {name}", values, ())
        return kind()  # type: ignore[no-any-return]
    algorithm: Algorithm = made(kind, values, "algorithm", name)  # type: ignore[assignment,arg-type]
    return algorithm


def make_loss(setting: Typed, algorithm: Algorithm) -> LossSettings:
    """The loss of an algorithm with the changes in a config's `algorithm: {loss: {...}}`."""
    name, values = type_and_fields(setting)
    changes = values.get("loss", {})
    if not isinstance(changes, Mapping):
        raise ConfigError(
            f"algorithm.loss is a mapping, such as {{epsilon: 0.3}}, got {changes!r:.80}"
        )
    if not isinstance(algorithm.loss, LossSettings):
        raise ConfigError(
            f"{name}.loss must be a LossSettings (agentgym_train.algorithms), got "
            f"{algorithm.loss!r:.80}"
        )
    return made(LossSettings, {**asdict(algorithm.loss), **changes}, "algorithm.loss", name)


def _checked(name: str, kind: Any) -> Any:
    if Algorithm not in getattr(kind, "__mro__", ()):
        raise ConfigError(
            f"{name} is not an algorithm; write `class {name.rpartition(':')[2]}(Algorithm)` with "
            "`from agentgym_train.algorithms import Algorithm`"
        )
    if hasattr(kind, "loss_type"):
        raise ConfigError(
            f"{name} has loss_type {kind.loss_type!r}, which has no effect any more; write `loss = "
            "LossSettings(...)` with `from agentgym_train.algorithms import LossSettings`, with "
            "mean='token' for dapo, 'sequence' for grpo, 'constant' for dr_grpo, or kind='cispo'"
        )
    if kind.advantages is Algorithm.advantages:
        raise ConfigError(f"{name} does not define advantages(self, batch) -> (B, T)")
    return kind


def _imported(name: str) -> Any:
    if ":" not in name:
        raise ConfigError(
            f"unknown algorithm {name!r}; choose from {', '.join(ALGORITHMS)}, or write "
            "package.module:Class"
        )
    return imported(name, f"the algorithm {name!r}")
