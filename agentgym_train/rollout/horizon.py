"""Horizon schedules: the maximum turns of an episode, read when the episode starts.

A schedule's numbers rise. It never takes a turn back, and never goes past the last number.
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

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.registration import load_named

SCHEDULES: Final = ("fixed", "stepwise", "linear", "adaptive")
"""Names of the built-in schedules."""

_RISE: Final = 0.01
"""A mean success that is higher by less than this has not risen."""


@dataclass(frozen=True, slots=True)
class Growth:
    """One growth of an adaptive horizon."""

    step: int
    """The last step of the earlier horizon."""
    turns: int
    """The horizon that it grew to."""
    reason: str


@runtime_checkable
class Horizon(Protocol):
    """A schedule: `horizon(step)` is the most turns of an episode sampled at optimizer step `step`.

    Steps are counted from 0. Subclass it for the defaults, which are those of a schedule that
    looks at the step alone.
    """

    def __call__(self, step: int) -> int:
        """Most turns at `step`."""
        ...

    @property
    def growths(self) -> Sequence[Growth]:
        """The times it grew by what it observed, with the reasons."""
        return ()

    def observe(self, step: int, success: float) -> str | None:
        """Take in the mean success of the episodes of `step`; the reason if the horizon grew."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here, as plain JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; raises `ConfigError` if it is another schedule's."""
        return None


@dataclass(frozen=True, slots=True)
class Fixed(Horizon):
    """The same horizon at every step."""

    turns: int

    def __post_init__(self) -> None:
        _check((self.turns,), every=1)

    def __call__(self, step: int) -> int:
        """Most turns at `step`."""
        return self.turns


@dataclass(frozen=True, slots=True)
class ScalingInterStepwise(Horizon):
    """ScalingInter-RL (arXiv:2509.08755): stage i lasts `every` optimizer steps, then the next.

    `h(t) = rounds[min(t // every, last)]`. Deviation: the incumbent counts steps from 1, so its
    first stage is one step shorter; ours counts from 0.
    """

    rounds: tuple[int, ...]
    every: int

    def __post_init__(self) -> None:
        _check(self.rounds, self.every)

    def __call__(self, step: int) -> int:
        """Most turns at `step`."""
        return self.rounds[min(step // self.every, len(self.rounds) - 1)]


@dataclass(frozen=True, slots=True)
class Linear(Horizon):
    """From each number to the next in a straight line of `every` optimizer steps.

    `h(t) = a + floor((b - a) * (t mod every) / every)` between `a = rounds[t // every]` and the
    number after it; the last number from there on.
    """

    rounds: tuple[int, ...]
    every: int

    def __post_init__(self) -> None:
        _check(self.rounds, self.every)
        _check_several("a linear", self.rounds)

    def __call__(self, step: int) -> int:
        """Most turns at `step`."""
        leg, within = divmod(step, self.every)
        if leg >= len(self.rounds) - 1:
            return self.rounds[-1]
        begin, end = self.rounds[leg : leg + 2]
        return begin + (end - begin) * within // self.every


@dataclass(slots=True)
class Adaptive(Horizon):
    """Grows to the next number when the present one is learned, or is learned no further.

    After `every` steps at a horizon at the earliest, it grows when the mean success of the last
    `window` steps is `threshold` or more, or when that mean has not risen for `patience` steps.
    Only steps at the present horizon count. It is a function of what it observed: the same
    successes give the same horizons, and a stage that is left does not come back.
    """

    rounds: tuple[int, ...]
    every: int = 1
    threshold: float = 0.8
    patience: int = 50
    window: int = 10
    growths: list[Growth] = field(default_factory=list)
    _steps: int = 0
    """Steps observed at the present horizon."""
    _best: float = -1.0
    """Highest mean of a full window at the present horizon."""
    _since_best: int = 0
    """Steps since then."""
    _recent: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        _check(self.rounds, self.every)
        _check_several("an adaptive", self.rounds)
        if not 0 < self.threshold <= 1:
            raise ConfigError(
                f"horizon_threshold is a success rate above 0 and up to 1, got {self.threshold}"
            )
        for name, value in (("patience", self.patience), ("window", self.window)):
            if value < 1:
                raise ConfigError(f"horizon_{name} is at least 1 optimizer step, got {value}")
        self._recent = deque(maxlen=self.window)

    def __call__(self, step: int) -> int:
        """Most turns now, whatever the step."""
        return self.rounds[len(self.growths)]

    def observe(self, step: int, success: float) -> str | None:
        """Take in a step's mean success, NaN if all its episodes were lost; why it grew, if so."""
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
        """Why the horizon grows now."""
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
            stuck = f"has not risen above {self._best:.2f} for {self.patience} steps"
            return f"success {mean:.2f} {stuck}"
        return None

    def state_dict(self) -> dict[str, Any]:
        """The growths so far, and the figures of the present stage."""
        return {
            "rounds": list(self.rounds),
            "growths": [asdict(growth) for growth in self.growths],
            "steps": self._steps,
            "best": self._best,
            "since_best": self._since_best,
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; raises `ConfigError` if it is another schedule's."""
        if state.get("rounds") != list(self.rounds):
            raise ConfigError(
                f"the kept horizon is of the stages {state.get('rounds')}, this one has "
                f"{list(self.rounds)}; a resumed run keeps its config"
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
    """The schedule of that name; None is `fixed` for one number and `stepwise` for several.

    `package.module:Class` is called as `Class(rounds, every)`.
    """
    stages = tuple(rounds)
    if schedule is not None and ":" in schedule:
        return as_horizon(_imported(schedule)(stages, every))
    if schedule not in (None, *SCHEDULES):
        raise ConfigError(
            f"no horizon_schedule {schedule!r}; choose from {', '.join(SCHEDULES)}, or write "
            "package.module:Class"
        )
    match schedule or ("fixed" if len(stages) == 1 else "stepwise"):
        case "fixed":
            if len(stages) != 1:
                raise ConfigError(f"a fixed horizon is one number, got {list(stages)}")
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
            raise ConfigError(f"a horizon is at least 1 turn, got {turns!r} at step {step}")
        return turns


def as_horizon(schedule: Callable[[int], int]) -> Horizon:
    """A schedule as the trainer uses it; a plain function has no state to save."""
    return schedule if isinstance(schedule, Horizon) else FromFunction(schedule)


def _imported(name: str) -> Callable[..., Callable[[int], int]]:
    try:
        made: Callable[..., Callable[[int], int]] = load_named(name)
    except (BadRequest, ImportError) as error:
        raise ConfigError(f"cannot import the horizon schedule {name!r}: {error}") from error
    return made


def _check(rounds: tuple[int, ...], every: int) -> None:
    if not rounds or min(rounds) < 1:
        raise ConfigError(f"a horizon is at least 1 turn, got {list(rounds)}")
    if any(later <= earlier for earlier, later in pairwise(rounds)):
        raise ConfigError(f"a horizon rises from stage to stage, got {list(rounds)}")
    if every < 1:
        raise ConfigError(f"horizon_every is at least 1 optimizer step, got {every}")


def _check_several(name: str, rounds: tuple[int, ...]) -> None:
    if len(rounds) < 2:
        raise ConfigError(
            f"{name} horizon needs two numbers or more, got {list(rounds)}; write the first and "
            "the last, such as [5, 30]"
        )
