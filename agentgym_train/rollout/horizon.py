"""Horizon schedules: the maximum turns per episode, as a function of the optimizer step.

The horizon applies from the start of an episode to its end. The built-in ones never decrease.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from math import isnan
from statistics import fmean
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from agentgym_env.errors import AgentGymError, ConfigError
from agentgym_train.config.checks import (
    Positive,
    ShareAboveZero,
    check_fields,
    check_keys,
    imported,
)

Turns = int | str | list[int] | dict[str, Any]
"""Maximum turns per episode, as in a config: a number, one per stage, or a mapping with `type`,
`turns` and the further fields of a schedule."""

EVERY: Final = 100
"""Steps per stage, unless a config says otherwise."""

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

    turns: Positive
    """Maximum turns per episode."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, step: int) -> int:
        """Maximum turns at `step`."""
        return self.turns


@dataclass(frozen=True, slots=True)
class ScalingInterStepwise(Horizon):
    """ScalingInter-RL (arXiv:2509.08755): stage i lasts `every` optimizer steps, then the next.

    `h(t) = turns[min(t // every, last)]`. Deviation: the reference implementation counts steps
    from 1, so its first stage is one step shorter; here steps are counted from 0.
    """

    turns: tuple[Positive, ...]
    """Maximum turns per episode, one number for each stage."""
    every: Positive
    """Optimizer steps per stage."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_stages(self.turns)

    def __call__(self, step: int) -> int:
        """Maximum turns at `step`."""
        return self.turns[min(step // self.every, len(self.turns) - 1)]


@dataclass(frozen=True, slots=True)
class Linear(Horizon):
    """Linear interpolation from each number to the next over `every` optimizer steps.

    `h(t) = a + floor((b - a) * (t mod every) / every)` with `a = turns[t // every]` and `b` the
    next number. After the last interval the horizon is the last number.
    """

    turns: tuple[Positive, ...]
    """Maximum turns per episode, one number for each stage."""
    every: Positive
    """Optimizer steps per stage."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_stages(self.turns, "a linear")

    def __call__(self, step: int) -> int:
        """Maximum turns at `step`."""
        leg, within = divmod(step, self.every)
        if leg >= len(self.turns) - 1:
            return self.turns[-1]
        begin, end = self.turns[leg : leg + 2]
        return begin + (end - begin) * within // self.every


@dataclass(slots=True)
class Adaptive(Horizon):
    """Grows to the next number when success is high enough, or no longer improves.

    The horizon grows when the mean success of the last `window` steps is at least `threshold`, or
    when that mean has not improved for `patience` steps, but not before `every` steps at the
    current horizon. Only steps at the current horizon count. The schedule is deterministic: the
    same successes give the same horizons.
    """

    turns: tuple[Positive, ...]
    """Maximum turns per episode, one number for each stage."""
    every: Positive = 1
    """Minimum of optimizer steps per stage."""
    threshold: ShareAboveZero = 0.8
    """Grow when the mean success reaches this value."""
    patience: Positive = 50
    """Also grow when the mean success has not risen for this many steps."""
    window: Positive = 10
    """Number of steps over which the mean success is taken."""
    growths: list[Growth] = field(init=False, default_factory=list)
    _steps: int = field(init=False, default=0)
    """Steps observed at the current horizon."""
    _best: float = field(init=False, default=-1.0)
    """Highest mean of a full window at the current horizon."""
    _since_best: int = field(init=False, default=0)
    """Steps since then."""
    _recent: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        _check_stages(self.turns, "an adaptive")
        self._recent = deque(maxlen=self.window)

    def __call__(self, step: int) -> int:
        """Current maximum turns; `step` is ignored."""
        return self.turns[len(self.growths)]

    def observe(self, step: int, success: float) -> str | None:
        """Record a step's mean success, NaN if all its episodes were lost."""
        if isnan(success) or len(self.growths) == len(self.turns) - 1:
            return None
        self._steps += 1
        self._recent.append(success)
        reason = self._reason()
        if reason is None:
            return None
        turns = self.turns[len(self.growths) + 1]
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
            "rounds": list(self.turns),
            "growths": [asdict(growth) for growth in self.growths],
            "steps": self._steps,
            "best": self._best,
            "since_best": self._since_best,
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; raises `ConfigError` if it is from another schedule."""
        if state.get("rounds") != list(self.turns):
            raise ConfigError(
                f"the checkpoint's horizon has the stages {state.get('rounds')}, the config has "
                f"{list(self.turns)}; resume with the run's own config"
            )
        self.growths = msgspec.convert(state["growths"], list[Growth])
        self._steps, self._best = state["steps"], state["best"]
        self._since_best = state["since_best"]
        self._recent = deque(state["recent"], maxlen=self.window)


SCHEDULES: Final[Mapping[str, Any]] = {
    "fixed": Fixed,
    "stepwise": ScalingInterStepwise,
    "linear": Linear,
    "adaptive": Adaptive,
}
"""The built-in schedules, by the `type` of a config's `horizon`."""


def make_horizon(setting: Turns) -> Horizon:
    """The schedule that a config's `horizon` describes; raises `ConfigError` for an invalid one.

    The type `package.module:Class` is called as `Class(turns, **fields)`: with the list of turns,
    and the mapping's further fields by name.
    """
    found = normal_horizon(setting)
    if isinstance(found, list):
        found = {"type": "fixed" if len(found) == 1 else "stepwise", "turns": found}
    kind, values = found["type"], {k: v for k, v in found.items() if k != "type"}
    if kind not in SCHEDULES:
        as_horizon(_called(kind, values))(0)  # one that fails is rejected before it is used
        return as_horizon(_called(kind, values))
    names = [f.name for f in fields(SCHEDULES[kind]) if f.init]
    check_keys(f" in horizon of type {kind}", values, names)
    if "every" in names:
        values = {"every": EVERY, **values}
    if kind == "fixed":
        if len(values["turns"]) > 1:
            raise ConfigError(f"a fixed horizon must be one number, got {values['turns']}")
        values["turns"] = values["turns"][0]
    try:
        schedule: Horizon = SCHEDULES[kind](**values)
    except ConfigError as error:
        is_named = re.match(rf"({'|'.join(names)})\b", str(error))
        raise ConfigError(f"horizon{'.' if is_named else ': '}{error}") from error
    return schedule


def normal_horizon(setting: Turns) -> list[int] | dict[str, Any]:
    """A config's `horizon` in its shortest form: the turns of each stage, or a mapping."""
    if isinstance(setting, str):
        raise ConfigError(
            f"horizon has turns; write `horizon: {{type: {setting}, turns: [5, 10]}}`, with yours"
        )
    if not isinstance(setting, Mapping):
        return [setting] if isinstance(setting, int) else list(setting)
    turns = setting.get("turns", [])
    turns = [turns] if isinstance(turns, int) else turns
    if not isinstance(turns, list | tuple) or not all(type(each) is int for each in turns):
        raise ConfigError(f"horizon.turns must be a number, or a list of them, got {turns!r:.80}")
    if not isinstance(setting.get("type", ""), str):
        raise ConfigError(f"horizon.type must be text, got {setting['type']!r:.80}")
    default = "fixed" if len(turns) == 1 else "stepwise"
    found = {"type": default, **setting, "turns": list(turns)}
    rest = {key: value for key, value in found.items() if key not in ("type", "turns")}
    is_short = found["type"] == default and rest in ({}, {"every": EVERY})
    return list(turns) if is_short else found


def stages_of(setting: Turns) -> list[int]:
    """The turns of each stage of a config's `horizon`; 0 stands for none."""
    found = normal_horizon(setting) if setting else []
    return list(found["turns"]) if isinstance(found, dict) else found


@dataclass(frozen=True, slots=True)
class FromFunction(Horizon):
    """A schedule that is a function of the optimizer step."""

    function: Callable[[int], int]

    def __call__(self, step: int) -> int:
        """Maximum turns at `step`; raises `ConfigError` unless it is at least 1."""
        try:
            turns = self.function(step)
        except Exception as error:
            # The user's code may fail in any way.
            named = getattr(self.function, "__qualname__", type(self.function).__qualname__)
            raise ConfigError(
                f"the horizon {named} failed at step {step}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(turns, int) or turns < 1:
            raise ConfigError(f"a horizon must be at least 1 turn, got {turns!r} at step {step}")
        return turns


def as_horizon(schedule: Callable[[int], int]) -> Horizon:
    """Wrap a function of the step as a `Horizon` without state; a `Horizon` is returned as is."""
    return schedule if isinstance(schedule, Horizon) else FromFunction(schedule)


def _called(name: str, values: Mapping[str, Any]) -> Callable[[int], int]:
    """A schedule of the user's."""
    if ":" not in name:
        raise ConfigError(
            f"horizon has no type {name!r:.80}; choose from {', '.join(SCHEDULES)}, or write "
            "package.module:Class"
        )
    rest = {key: value for key, value in values.items() if key != "turns"}
    try:
        schedule = imported(name, f"the horizon schedule {name!r}")(values["turns"], **rest)
    except AgentGymError:
        raise
    except Exception as error:
        # The user's code may fail in any way.
        called = ", ".join(["turns", *(f"{key}=..." for key in rest)])
        raise ConfigError(
            f"the horizon schedule {name} is called with {called}: {type(error).__name__}: {error}"
        ) from error
    if not callable(schedule):
        raise ConfigError(f"the horizon schedule {name} makes {schedule!r:.80}, no function")
    made: Callable[[int], int] = schedule
    return made


def _check_stages(turns: Sequence[int], several: str = "") -> None:
    """Raise `ConfigError` unless the turns rise; `several` is a kind that needs two numbers."""
    if not turns:
        raise ConfigError(
            "turns has no number; write `horizon: {turns: 10}`, or one number for each stage"
        )
    if any(later <= earlier for earlier, later in pairwise(turns)):
        raise ConfigError(f"a horizon must increase from stage to stage, got {list(turns)}")
    if several and len(turns) < 2:
        raise ConfigError(
            f"{several} horizon needs at least two numbers, got {list(turns)}; write the first and "
            "the last, such as [5, 30]"
        )
