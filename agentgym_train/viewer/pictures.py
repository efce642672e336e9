"""The world's picture at each turn: nothing is stored, the episode is played again.

Only environments that this installation registers are played, never a class that a file names, and
never with settings that name code or addresses, unless the runs are trusted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from agentgym_env.errors import AgentGymError
from agentgym_env.registration import env_class, registered
from agentgym_env.trust import names_in, require_trust
from agentgym_train.viewer.png import png
from agentgym_train.viewer.stored import Stored

_KEPT_EPISODES = 8
_MODE = "rgb_array"


class NoPicture(AgentGymError):
    """The episode cannot be drawn; the message says why."""


class Pictures:
    """Draws episodes, one at a time; the last few are kept."""

    def __init__(self, *, trusted: bool = False) -> None:
        self._trusted = trusted
        self._lock = threading.Lock()
        self._drawn: OrderedDict[tuple[int, str, int], list[bytes]] = OrderedDict()

    def draws(self, env_id: str) -> bool:
        """Whether an environment can be drawn here."""
        try:
            return _MODE in _class_of(env_id).metadata["render_modes"]
        except AgentGymError:
            return False

    def of(
        self, key: tuple[int, str, int], episode: Stored, settings: Mapping[str, Any]
    ) -> list[bytes]:
        """PNGs of the start and after each turn; `key` is the episode's run, file and place.

        Raises `NoPicture`, which names the first turn at which the world answered otherwise.
        """
        with self._lock:
            if key not in self._drawn:
                try:
                    names = names_in({"env_kwargs": settings})
                    require_trust("the run", names, trusted=self._trusted)
                    self._drawn[key] = _draw(episode, settings)
                except (AgentGymError, TypeError, ValueError, LookupError) as error:
                    raise NoPicture(str(error)) from error
                if len(self._drawn) > _KEPT_EPISODES:
                    self._drawn.popitem(last=False)
            self._drawn.move_to_end(key)
            return self._drawn[key]


def _class_of(env_id: str) -> Any:
    if env_id not in {entry.env_id for entry in registered()}:
        raise NoPicture(f"{env_id[:100]} is not among the environments installed here")
    return env_class(env_id)


def _draw(episode: Stored, settings: Mapping[str, Any]) -> list[bytes]:
    made = _class_of(episode.env)
    if _MODE not in made.metadata["render_modes"]:
        raise NoPicture(f"{episode.env} has no pictures")
    env = made(render_mode=_MODE, **settings)
    try:
        observation, _ = env.reset(seed=episode.seed, options={"task": episode.task})
        _check(0, observation, episode.observation)
        drawn = [png(env.render())]
        for number, turn in enumerate(episode.turns, 1):
            observation = env.step(turn.action)[0]
            _check(number, observation, turn.observation)
            drawn.append(png(env.render()))
        return drawn
    finally:
        env.close()


def _check(turn: int, observation: str, stored: str) -> None:
    if observation != stored:
        raise NoPicture(
            f"played again, the world answers otherwise at turn {turn}: it has other settings or "
            "another version here"
        )
