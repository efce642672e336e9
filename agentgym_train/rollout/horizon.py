"""Horizon schedules: the maximum turns per episode, as a function of the optimizer step.

The horizon applies from the start of an episode to its end. It never decreases during a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import isnan
from statistics import fmean
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from agentgym_env.entry_points import load_named
from agentgym_env.errors import BadRequest, ConfigError

SCHEDULES: Final = ("fixed", "stepwise", "linear", "adaptive")
"""Names of the built-in schedules."""

_RISE: Final = 0.01
"""Minimum increase of the mean success that counts as an improvement."""


@dataclass(frozen=True, slots=True)
class Growth:
    """An increase of an adaptive horizon."""

    step: int
    """The last step with the previous horizon."""
    turns: int
    """The new horizon."""
    reason: str


@runtime_checkable
class Horizon(Protocol):
    """A schedule: `horizon(step)` is the maximum turns per episode at optimizer step `step`.

    Steps are counted from 0. The default methods are for schedules that depend on the step only.
    """

    def __call__(self, step: int) -> int:
        """Maximum turns at `step`."""
        ...

    @property
    def growths(self) -> Sequence[Growth]:
        """All increases that resulted from observed metrics, with their reasons."""
        return ()

    def observe(self, step: int, success: float) -> str | None:
        """Record the mean success of `step`; returns the reason if the horizon grew."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state for `load_state_dict`, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; raises `ConfigError` if it is from another schedule."""
        return None


@dataclass(frozen=True, slots=True)
class Fixed(Horizon):
    """The same horizon at every step."""

    turns: int

    def __post_init__(self) -> None:
        _check((self.turns,), every=1)

    def __call__(self, step: int) -> int:
        """Maximum turns at `step`."""
        return self.turns


@dataclass(frozen=True, slots=True)
class ScalingInterStepwise(Horizon):
    """ScalingInter-RL (arXiv:2509.08755): stage i lasts `every` optimizer steps, then the next.

    `h(t) = rounds[min(t // every, last)]`. Deviation: the reference implementation counts steps
    from 1, so its first stage is one step shorter; here steps are counted from 0.
    """

    rounds: tuple[int, ...]
    every: int

    def __post_init__(self) -> None:
        _check(self.rounds, self.every)

    def __call__(self, step: int) -> int:
        """Maximum turns at `step`."""
        return self.rounds[min(step // self.every, len(self.rounds) - 1)]


@dataclass(frozen=True, slots=True)
class Linear(Horizon):
    """Linear interpolation from each number to the next over `every` optimizer steps.

    `h(t) = a + floor((b - a) * (t mod every) / every)` with `a = rounds[t // every]` and `b` the
    next number. After the last interval the horizon is the last number.
    """

    rounds: tuple[int, ...]
    every: int

    def __post_init__(self) -> None:
        _check(self.rounds, self.every)
        _check_several("a linear", self.rounds)

    def __call__(self, step: int) -> int:
        """Maximum turns at `step`."""
        leg, within = divmod(step, self.every)
        if leg >= len(self.rounds) - 1:
            return self.rounds[-1]
        begin, end = self.rounds[leg : leg + 2]
        return begin + (end - begin) * within // self.every


@dataclass(slots=True)
class Adaptive(Horizon):
    """Grows to the next number when success is high enough, or no longer improves.

    The horizon grows when the mean success of the last `window` steps is at least `threshold`, or
    when that mean has not improved for `patience` steps, but not before `every` steps at the
    current horizon. Only steps at the current horizon count. The schedule is deterministic: the
    same successes give the same horizons.
    """

    rounds: tuple[int, ...]
    every: int = 1
    threshold: float = 0.8
    patience: int = 50
    window: int = 10
    growths: list[Growth] = field(default_factory=list)
    _steps: int = 0
    """Steps observed at the current horizon."""
    _best: float = -1.0
    """Highest mean of a full window at the current horizon."""
    _since_best: int = 0
    """Steps since then."""
    _recent: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        _check(self.rounds, self.every)
        _check_several("an adaptive", self.rounds)
        if not 0 < self.threshold <= 1:
            raise ConfigError(
                f"horizon_threshold must be above 0 and at most 1, got {self.threshold}"
            )
        for name, value in (("patience", self.patience), ("window", self.window)):
            if value < 1:
                raise ConfigError(f"horizon_{name} must be at least 1 optimizer step, got {value}")
        self._recent = deque(maxlen=self.window)

    def __call__(self, step: int) -> int:
        """Current maximum turns; `step` is ignored."""
        return self.rounds[len(self.growths)]

    def observe(self, step: int, success: float) -> str | None:
        """Record a step's mean success, NaN if all its episodes were lost."""
        if isnan(success) or len(self.growths) == len(self.rounds) - 1:
            return None
        self._steps += 1
        self._recent.append(success)
        reason = self._reason()
        if reason is None:
            return None
        turns = self.rounds[len(self.growths) + 1]
        self.growths.append(Growth(step, turns, reason))
        self._recent.clear()
        self._steps, self._best, self._since_best = 0, -1.0, 0
        return reason

    def _reason(self) -> str | None:
        """The reason why the horizon grows now, or None."""
        if len(self._recent) < self.window:
            return None
        mean = fmean(self._recent)
        if mean >= self._best + _RISE:
            self._best, self._since_best = mean, 0
        else:
            self._since_best += 1
        if self._steps < self.every:
            return None
        if mean >= self.threshold:
            return f"success {mean:.2f} over {self.window} steps reached {self.threshold:g}"
        if self._since_best >= self.patience:
            stuck = f"has not improved on {self._best:.2f} for {self.patience} steps"
            return f"success {mean:.2f} {stuck}"
        return None

    def state_dict(self) -> dict[str, Any]:
        """The increases so far, and the statistics of the current stage."""
        return {
            "rounds": list(self.rounds),
            "growths": [asdict(growth) for growth in self.growths],
            "steps": self._steps,
            "best": self._best,
            "since_best": self._since_best,
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; raises `ConfigError` if it is from another schedule."""
        if state.get("rounds") != list(self.rounds):
            raise ConfigError(
                f"the checkpoint's horizon has the stages {state.get('rounds')}, the config has "
                f"{list(self.rounds)}; resume with the run's own config"
            )
        self.growths = msgspec.convert(state["growths"], list[Growth])
        self._steps, self._best = state["steps"], state["best"]
        self._since_best = state["since_best"]
        self._recent = deque(state["recent"], maxlen=self.window)


def make_horizon(
    rounds: Sequence[int],
    every: int,
    schedule: str | None = None,
    *,
    threshold: float = 0.8,
    patience: int = 50,
    window: int = 10,
) -> Horizon:
    """Make a schedule by name; None is `fixed` for one number and `stepwise` for several.

    `package.module:Class` is called as `Class(rounds, every)`.
    """
    stages = tuple(rounds)
    if schedule is not None and ":" in schedule:
        return as_horizon(_imported(schedule)(stages, every))
    if schedule not in (None, *SCHEDULES):
        raise ConfigError(
            f"unknown horizon_schedule {schedule!r}; choose from {', '.join(SCHEDULES)}, or write "
            "package.module:Class"
        )
    match schedule or ("fixed" if len(stages) == 1 else "stepwise"):
        case "fixed":
            if len(stages) != 1:
                raise ConfigError(f"a fixed horizon must be one number, got {list(stages)}")
            return Fixed(stages[0])
        case "linear":
            return Linear(stages, every)
        case "adaptive":
            return Adaptive(stages, every, threshold, patience, window)
    return ScalingInterStepwise(stages, every)


@dataclass(frozen=True, slots=True)
class FromFunction(Horizon):
    """A schedule that is a function of the optimizer step."""

    function: Callable[[int], int]

    def __call__(self, step: int) -> int:
        """Maximum turns at `step`; raises `ConfigError` unless it is at least 1."""
        turns = self.function(step)
        if not isinstance(turns, int) or turns < 1:
            raise ConfigError(f"a horizon must be at least 1 turn, got {turns!r} at step {step}")
        return turns


def as_horizon(schedule: Callable[[int], int]) -> Horizon:
    """Wrap a function of the step as a `Horizon` without state; a `Horizon` is returned as is."""
    return schedule if isinstance(schedule, Horizon) else FromFunction(schedule)


def _imported(name: str) -> Callable[..., Callable[[int], int]]:
    try:
        made: Callable[..., Callable[[int], int]] = load_named(name)
    except (BadRequest, ImportError) as error:
        raise ConfigError(f"cannot import the horizon schedule {name!r}: {error}") from error
    if not callable(made):
        raise ConfigError(
            f"the horizon schedule {name!r} is a {type(made).__name__}; name a class or a function"
        )
    return made


def _check(rounds: tuple[int, ...], every: int) -> None:
    if not rounds or not all(isinstance(turns, int) and turns >= 1 for turns in rounds):
        raise ConfigError(f"a horizon must be at least 1 turn, got {list(rounds)}")
    if any(later <= earlier for earlier, later in pairwise(rounds)):
        raise ConfigError(f"a horizon must increase from stage to stage, got {list(rounds)}")
    if every < 1:
        raise ConfigError(f"horizon_every must be at least 1 optimizer step, got {every}")


def _check_several(name: str, rounds: tuple[int, ...]) -> None:
    if len(rounds) < 2:
        raise ConfigError(
            f"{name} horizon needs at least two numbers, got {list(rounds)}; write the first and "
            "the last, such as [5, 30]"
        )
