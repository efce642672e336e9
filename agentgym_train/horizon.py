"""Horizon schedules: how many turns an episode may take at an optimizer step. Callable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from agentgym_env.errors import BadRequest


class Horizon(Protocol):
    """Most turns an episode may take, from the optimizer step and the last step's metrics."""

    def __call__(self, step: int, metrics: Mapping[str, float] | None = None) -> int:
        """The horizon of optimizer step `step`."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same horizon at every step."""

    turns: int

    def __post_init__(self) -> None:
        _check((self.turns,), every=1)

    def __call__(self, step: int, metrics: Mapping[str, float] | None = None) -> int:
        """Most turns at `step`."""
        return self.turns


@dataclass(frozen=True, slots=True)
class ScalingInterStepwise:
    """ScalingInter-RL (arXiv:2509.08755): stage i lasts `every` optimizer steps, then the next.

    Deviation: the incumbent counts steps from 1, so its first stage is one step shorter; ours
    counts from 0.
    """

    rounds: tuple[int, ...]
    every: int

    def __post_init__(self) -> None:
        _check(self.rounds, self.every)

    def __call__(self, step: int, metrics: Mapping[str, float] | None = None) -> int:
        """Most turns at `step`."""
        return self.rounds[min(step // self.every, len(self.rounds) - 1)]


def make_horizon(rounds: tuple[int, ...], every: int) -> Horizon:
    """`Fixed` for one round, `ScalingInterStepwise` for several."""
    if len(rounds) == 1:
        return Fixed(rounds[0])
    return ScalingInterStepwise(tuple(rounds), every)


def _check(rounds: tuple[int, ...], every: int) -> None:
    if not rounds or min(rounds) < 1:
        raise BadRequest(f"a horizon is at least 1 turn, got {list(rounds)}")
    if any(later <= earlier for earlier, later in pairwise(rounds)):
        raise BadRequest(f"a ScalingInter horizon rises from stage to stage, got {list(rounds)}")
    if every < 1:
        raise BadRequest(f"a stage lasts at least 1 optimizer step, got every={every}")
