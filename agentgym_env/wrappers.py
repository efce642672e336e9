"""Wrappers for text environments, and the list of wrappers that a config names.

All are ordinary `gymnasium.Wrapper`s, for `gymnasium.make` and for training (`wrappers:` in a
config). For a function of the reward or of the observation, Gymnasium's own `TransformReward` and
`TransformObservation` fit texts as they are; a subclass of `gymnasium.RewardWrapper`,
`gymnasium.ObservationWrapper` or `gymnasium.ActionWrapper` can be named in a config.

```yaml
wrappers:
  - agentgym_env.wrappers:AvailableActions
  - {wrapper: agentgym_env.wrappers:ScaleReward, scale: 0.1}
```
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import msgspec
from gymnasium.utils import RecordConstructorArgs

from agentgym_env.entry_points import load_named, split_name
from agentgym_env.errors import BadRequest, EpisodeFailure, Outcome, outcome_of
from agentgym_env.run_store import append_lines
from agentgym_env.spaces import TextSpace
from agentgym_env.trajectory import Trajectory, Turn

Env = gymnasium.Env[str, str]
Step = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]
WrapperSpec = str | Mapping[str, Any]
"""`module:Class`, or a mapping of `wrapper: module:Class` and its keyword arguments."""


@dataclass(frozen=True, slots=True)
class NamedWrapper:
    """A wrapper that a config names."""

    name: str
    """`module:Class`."""
    kwargs: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[[Env], Env]:
        """What wraps an environment; raises `BadRequest` where the name cannot be imported."""
        try:
            wrapper = load_named(self.name)
        except ImportError as error:
            raise BadRequest(
                f"wrapper {self.name} cannot be imported: {error}. Name a module that is "
                "installed or in the working directory"
            ) from error
        if not callable(wrapper):
            raise BadRequest(f"wrapper {self.name} is not a class; name a gymnasium.Wrapper")
        return partial(wrapper, **self.kwargs)


def named_wrappers(specs: Sequence[WrapperSpec]) -> list[NamedWrapper]:
    """The wrappers of a config, the innermost first; imports none. Raises `BadRequest`."""
    return [_named(spec) for spec in specs]


def wrap(env: Env, specs: Sequence[WrapperSpec]) -> Env:
    """The environment in the wrappers of a config, of which the last is the outermost."""
    for named in named_wrappers(specs):
        env = named.load()(env)
    return env


class ScaleReward(gymnasium.RewardWrapper[str, str], RecordConstructorArgs):
    """Multiplies every reward by `scale`."""

    def __init__(self, env: Env, scale: float) -> None:
        RecordConstructorArgs.__init__(self, scale=scale)
        gymnasium.RewardWrapper.__init__(self, env)
        self.scale = float(scale)

    def reward(self, reward: SupportsFloat) -> float:
        """The scaled reward."""
        return float(reward) * self.scale


class StepPenalty(gymnasium.RewardWrapper[str, str], RecordConstructorArgs):
    """Subtracts `penalty` from the reward of every step, so that shorter solutions return more."""

    def __init__(self, env: Env, penalty: float) -> None:
        RecordConstructorArgs.__init__(self, penalty=penalty)
        gymnasium.RewardWrapper.__init__(self, env)
        self.penalty = float(penalty)

    def reward(self, reward: SupportsFloat) -> float:
        """The reward less the penalty."""
        return float(reward) - self.penalty


class TruncateObservation(gymnasium.ObservationWrapper[str, str, str], RecordConstructorArgs):
    """Cuts observations after `max_chars` characters, a note about the rest included."""

    def __init__(self, env: Env, max_chars: int) -> None:
        if max_chars < 1:
            raise BadRequest(f"max_chars is at least 1, got {max_chars}")
        RecordConstructorArgs.__init__(self, max_chars=max_chars)
        gymnasium.ObservationWrapper.__init__(self, env)
        self.observation_space = TextSpace(max_chars)
        self.max_chars = max_chars

    def observation(self, observation: str) -> str:
        """The beginning of the observation."""
        if len(observation) <= self.max_chars:
            return observation
        note = f"\n[{len(observation)} characters, cut]"
        return (observation[: max(0, self.max_chars - len(note))] + note)[: self.max_chars]


class AvailableActions(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Appends the available actions to the observation, at most `max_actions` of them.

    Where the environment does not list its actions, and at the end of an episode, the observation
    stays as it is.
    """

    def __init__(self, env: Env, max_actions: int | None = None) -> None:
        RecordConstructorArgs.__init__(self, max_actions=max_actions)
        gymnasium.Wrapper.__init__(self, env)
        self.max_actions = max_actions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_actions(observation), info

    def step(self, action: str) -> Step:
        """Take a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            observation = self._with_actions(observation)
        return observation, reward, terminated, truncated, info

    def _with_actions(self, observation: str) -> str:
        actions = self.env.get_wrapper_attr("available_actions")()
        if not actions:
            return observation
        listed = "\n".join(actions[: self.max_actions])
        return f"{observation}\n\nAvailable actions:\n{listed}"


class EndAfterInvalid(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Ends an episode, as terminated, with the `count`-th invalid action in a row.

    In training, a policy that repeats an impossible action then costs few turns. Where the
    environment does not tell whether an action was invalid, no episode ends by it.
    """

    def __init__(self, env: Env, count: int) -> None:
        if count < 1:
            raise BadRequest(f"count is at least 1, got {count}")
        RecordConstructorArgs.__init__(self, count=count)
        gymnasium.Wrapper.__init__(self, env)
        self.count = count
        self._in_a_row = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        self._in_a_row = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> Step:
        """Take a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._in_a_row = self._in_a_row + 1 if info.get("invalid_action") else 0
        return observation, reward, terminated or self._in_a_row >= self.count, truncated, info


class RecordTrajectory(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Appends each finished episode to the file `path`, as `agentgym replay` and `view` read it.

    An episode is written when it ends or when the environment is lost. One that is reset or closed
    before its end is not written.
    """

    def __init__(self, env: Env, path: str | Path, policy: str = "unknown") -> None:
        RecordConstructorArgs.__init__(self, path=str(path), policy=policy)
        gymnasium.Wrapper.__init__(self, env)
        self.path = Path(path)
        self.policy = policy
        self._first: tuple[str, dict[str, Any]] | None = None
        self._turns: list[Turn] = []
        self._began = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        self._first, self._turns = None, []
        self._began = time.monotonic()
        self._first = self.env.reset(seed=seed, options=options)
        return self._first

    def step(self, action: str) -> Step:
        """Take a step; the last one of an episode writes it."""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except EpisodeFailure as failure:
            self._write(failure.kind, str(failure))
            raise
        self._turns.append(Turn(action, action, observation, float(reward), info))
        outcome = outcome_of(terminated, truncated, info)
        if outcome == "world_limit" and self._limit == len(self._turns):
            outcome = "horizon"
        if outcome is not None:
            self._write(outcome)
        return observation, reward, terminated, truncated, info

    @property
    def _limit(self) -> int | None:
        """Maximum turns per episode, as set by `gymnasium.make`."""
        return self.spec.max_episode_steps if self.spec is not None else None

    def _write(self, outcome: Outcome, error: str | None = None) -> None:
        if self._first is None:
            return
        (observation, first_info), self._first = self._first, None
        info = self._turns[-1].info if self._turns else first_info
        trajectory = Trajectory(
            env=self.spec.id if self.spec is not None else type(self.unwrapped).__name__,
            task=str(first_info.get("task", "")),
            seed=int(first_info.get("seed", 0)),
            instruction=str(getattr(self.unwrapped, "instruction", "")),
            observation=observation,
            turns=self._turns,
            outcome=outcome,
            policy=self.policy,
            horizon=self._limit or len(self._turns),
            success=bool(info.get("success", False)),
            score=float(info.get("score", 0.0)),
            error=error,
            seconds=time.monotonic() - self._began,
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_lines(self.path, [msgspec.json.encode(trajectory)])


def _named(spec: WrapperSpec) -> NamedWrapper:
    kwargs = {"wrapper": spec} if isinstance(spec, str) else dict(spec)
    name = kwargs.pop("wrapper", None)
    if not isinstance(name, str):
        raise BadRequest(
            "a wrapper is `module:Class`, or `{wrapper: module:Class, name: value}`, got "
            f"{spec!r}"
        )
    split_name(name)
    return NamedWrapper(name, kwargs)
