"""Pictures of an episode: replays it and encodes what the environment renders as PNG."""

from __future__ import annotations

import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from agentgym_env.errors import AgentGymError
from agentgym_env.registry import env_class, registered
from agentgym_env.trust import names_in, require_trust
from agentgym_viewer.episodes import StoredEpisode

_SIGNATURE = b"\x89PNG\r\n\x1a\n"

_RGB = 2

_KEPT_EPISODES = 8

_MODE = "rgb_array"


def png(pixels: Any) -> bytes:
    """Encode (H, W, 3) bytes as PNG."""
    array = np.ascontiguousarray(pixels, dtype=np.uint8)  # (H, W, 3)
    height, width, _ = array.shape
    # Each line starts with its filter type: 0, none.
    lines = np.zeros((height, 1 + width * 3), dtype=np.uint8)
    lines[:, 1:] = array.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 6)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


class NoPicture(AgentGymError):
    """The episode cannot be rendered; the message is the reason."""


class Pictures:
    """Renders episodes, one at a time, and caches the last few."""

    def __init__(self, *, trusted: bool = False) -> None:
        self._trusted = trusted
        self._lock = threading.Lock()
        self._drawn: OrderedDict[tuple[int, str, int], list[bytes]] = OrderedDict()

    def draws(self, env_id: str) -> bool:
        """Whether an environment is installed and can be rendered."""
        try:
            return _MODE in _class_of(env_id).metadata["render_modes"]
        except AgentGymError:
            return False

    def pictures_of(
        self, key: tuple[int, str, int], episode: StoredEpisode, settings: Mapping[str, Any]
    ) -> list[bytes]:
        """PNGs of the start and after each turn; `key` is the episode's run, file and position.

        Raises `NoPicture`, for example if an observation differs in the replay.
        """
        with self._lock:
            if key not in self._drawn:
                try:
                    names = names_in({"env": episode.env, "env_kwargs": settings})
                    require_trust("the run", names, trusted=self._trusted)
                    self._drawn[key] = _draw(episode, settings)
                except (AgentGymError, TypeError, ValueError, LookupError) as error:
                    raise NoPicture(str(error)) from error
                if len(self._drawn) > _KEPT_EPISODES:
                    self._drawn.popitem(last=False)
            self._drawn.move_to_end(key)
            return self._drawn[key]


def _chunk(name: bytes, data: bytes) -> bytes:
    checked = zlib.crc32(data, zlib.crc32(name))
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checked)


def _class_of(env_id: str) -> Any:
    if env_id not in {entry.env_id for entry in registered()}:
        raise NoPicture(f"the environment {env_id[:100]} is not installed")
    return env_class(env_id)


def _draw(episode: StoredEpisode, settings: Mapping[str, Any]) -> list[bytes]:
    made = _class_of(episode.env)
    if _MODE not in made.metadata["render_modes"]:
        raise NoPicture(f"{episode.env} cannot be rendered")
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
            f"the replay's observation differs at turn {turn}: the environment has other settings "
            "or another version"
        )
