"""Gymnasium's environments in words: observations as text, and text as actions.

Knows nothing about `TextEnv`, whose `from_gymnasium` is made of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from agentgym_env.errors import BadRequest

Make = Callable[[], gymnasium.Env[Any, Any]]
Describe = Callable[[Any, gymnasium.Env[Any, Any]], str]
Parse = Callable[[str], Any]

_MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Translation:
    """An environment of Gymnasium's, and how it is written and read."""

    title: str
    """The environment's id, or its class."""
    make: Make
    describe: Describe
    """An observation as text, given the environment too."""
    parse: Parse
    """A text as an action; None for a text that is not an action."""
    names: tuple[str, ...]
    """Names of the actions, in the order of their numbers; empty where only `parse` knows them."""

    @property
    def class_name(self) -> str:
        """The title as the name of a class."""
        return self.title.rpartition("/")[2].partition("-v")[0]

    @property
    def instruction(self) -> str:
        """The default instruction."""
        names = f"one of: {', '.join(self.names)}" if self.names else "one action"
        return f"You are in {self.title}. Answer with {names}."

    def reject(self, action: str) -> str:
        """The answer to a text that is not an action."""
        fact = f"{action[:_MAX_SHOWN]!r} is no action here."
        return f"{fact} Answer with one of: {', '.join(self.names)}." if self.names else fact


def translation(
    env: str | Make,
    describe: Describe | None,
    parse: Sequence[str] | Parse | None,
    settings: Mapping[str, Any],
) -> Translation:
    """The translation of an environment with discrete actions; see `TextEnv.from_gymnasium`."""
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
    return Translation(
        title,
        make,
        describe or _observation_text,
        parse if callable(parse) else lambda text: numbers.get(text.strip().casefold()),
        names,
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


def _observation_text(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
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
