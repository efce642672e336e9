"""GymnasiumText: an environment of Gymnasium's with discrete actions, told and played as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from agentgym_env.errors import BadRequest
from agentgym_env.text_env import TaskSet, TextEnv

Make = Callable[[], gymnasium.Env[Any, Any]]
Describe = Callable[[Any, gymnasium.Env[Any, Any]], str]
Parse = Callable[[str], Any]

_TRAIN = 800
_TEST = 200
_MOST_SHOWN = 200


class GymnasiumText(TextEnv):
    """A `TextEnv` around an environment of Gymnasium's; `text_class` makes subclasses.

    Tasks: numbers in the splits `train` (0 to 799) and `test` (800 to 999). They are starts: what
    the environment draws is drawn by the episode's seed and its task.
    Reward: the environment's. Success: it ended, and its last reward was above 0.
    """

    make: ClassVar[Make]
    """Makes the environment."""
    describe: ClassVar[Describe]
    parse: ClassVar[Parse]
    names: ClassVar[tuple[str, ...]]
    """Of the actions, in the order of their numbers; empty where `parse` alone knows them."""
    refused: ClassVar[float] = 0.0
    """Reward for a text that is no action. Where to play on costs, and waiting does not, a policy
    learns to write what is none: let that cost too."""

    tasks = TaskSet(
        {
            "train": [str(number) for number in range(_TRAIN)],
            "test": [str(number) for number in range(_TRAIN, _TRAIN + _TEST)],
        }
    )

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.env = type(self).make()
        """The environment of Gymnasium's."""
        self.observation: Any = None
        """Its last observation."""
        self._facts: dict[str, Any] = {}
        self._reward = 0.0
        self._cut = False

    def _reset(self, task: str) -> str:
        self.observation, self._facts = self.env.reset(seed=int(self.rng.random() * 2**31))
        self._reward, self._cut = 0.0, False
        return type(self).describe(self.observation, self.env)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """As `TextEnv.step`; the environment's own time limit truncates."""
        observation, reward, terminated, _, info = super().step(action)
        self._over = terminated or self._cut
        return observation, reward, terminated, self._cut, info

    def _step(self, action: str) -> tuple[str, float, bool]:
        chosen = type(self).parse(action)
        if chosen is None:
            told = type(self).describe(self.observation, self.env)
            return f"{self._refusal(action)}\n{told}", self.refused, False
        self.observation, reward, ended, self._cut, self._facts = self.env.step(chosen)
        self._reward = float(reward)
        told = type(self).describe(self.observation, self.env)
        return told, self._reward, bool(ended)

    def success(self) -> bool:
        """Whether the environment ended with a reward above 0."""
        return self._over and self._reward > 0

    def available_actions(self) -> list[str] | None:
        """The actions' names; where the environment gives an `action_mask`, those it allows."""
        allowed = self._facts.get("action_mask")
        if allowed is None:
            return list(self.names) or None
        return [name for name, is_allowed in zip(self.names, allowed, strict=False) if is_allowed]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
        super().close()

    def _refusal(self, action: str) -> str:
        said = f"{action[:_MOST_SHOWN]!r} is no action here."
        return f"{said} Answer with one of: {', '.join(self.names)}." if self.names else said


def text_class(
    env: str | Make,
    describe: Describe | None = None,
    parse: Sequence[str] | Parse | None = None,
    *,
    instruction: str | None = None,
    refused: float = 0.0,
    **settings: Any,
) -> type[GymnasiumText]:
    """What `TextEnv.from_gymnasium` gives; `settings` are for `gymnasium.make`."""
    if not isinstance(env, str) and settings:
        raise BadRequest(
            f"{sorted(settings)} are for gymnasium.make, and the environment is given as a "
            "callable; have it make the environment with them"
        )

    def make() -> gymnasium.Env[Any, Any]:
        if not isinstance(env, str):
            return env()
        return gymnasium.make(env, disable_env_checker=True, **settings)

    probe = make()
    try:
        names = _names_of(probe.action_space, parse)
        title = probe.spec.id if probe.spec is not None else type(probe.unwrapped).__name__
        start = int(getattr(probe.action_space, "start", 0))
    finally:
        probe.close()
    numbers = {name.casefold(): start + number for number, name in enumerate(names)}
    told = f"Answer with one of: {', '.join(names)}." if names else "Answer with one action."
    return type(
        title.rpartition("/")[2].partition("-v")[0],
        (GymnasiumText,),
        {
            "__doc__": f"{title} of Gymnasium, as text.",
            "instruction": instruction or f"You are in {title}. {told}",
            "make": staticmethod(make),
            "describe": staticmethod(describe or _shown),
            "names": names,
            "refused": refused,
            "parse": staticmethod(
                parse if callable(parse) else lambda text: numbers.get(text.strip().casefold())
            ),
        },
    )


def _names_of(space: gymnasium.Space[Any], parse: Sequence[str] | Parse | None) -> tuple[str, ...]:
    if callable(parse):
        return ()
    if not isinstance(space, Discrete):
        raise BadRequest(
            f"its actions are {space}, which have no names; give a parse from text to an action"
        )
    if parse is None:
        return tuple(str(int(space.start) + number) for number in range(int(space.n)))
    names = tuple(parse)
    if len(names) != space.n or len({name.casefold() for name in names}) < space.n:
        raise BadRequest(f"there are {space.n} actions, and a name is needed for each; got {names}")
    return names


def _shown(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
    """Numbers as they are, arrays as lists."""
    return f"Observation: {_plain(observation)}"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple | list):
        return tuple(_plain(part) for part in value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value
