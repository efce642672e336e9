"""SciWorld's oracle: the simulator's own way through a task, replayed once to see that it solves.

A simulator that looked for one way looks for one at each later load, so it is one apart.
"""

from __future__ import annotations

import logging
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from agentgym_servers.worlds.sciworld.simulator import Simulator

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """`agentgym-sdk` in the user's cache folder, `XDG_CACHE_HOME` or `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "agentgym-sdk"


def read_cached(path: Path) -> bytes | None:
    """What was kept at `path`, or None."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("the cache %s cannot be read: %s", path, error)
        return None


def write_cached(path: Path, content: bytes) -> None:
    """Store a value; readers see all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError as error:
        logger.warning("the cache %s cannot be written: %s", path, error)


_TIMEOUT_S: Final = 300.0
"""The way through mendelian-genetics takes up to 36 s on a free machine; on a busy one, minutes."""

_HEAP_MB: Final = 1024  # the search through boil/21 needs over 400


class GoldPath(msgspec.Struct, frozen=True):
    """Actions that solve a task, and the moves they take; no actions where the way fails."""

    actions: list[str]
    moves: int


def gold_path(task: str, variation: int, simplifications: str) -> GoldPath:
    """The way through a task, from the cache or from a simulator that is started for it."""
    name = f"{variation}-{simplifications}.json" if simplifications else f"{variation}.json"
    path = cache_folder() / f"sciworld-{version('scienceworld')}" / task / name
    kept = read_cached(path)
    if kept is not None:
        try:
            return msgspec.json.decode(kept, type=GoldPath)
        except msgspec.MsgspecError:
            logger.warning("the cache %s is damaged; it is made again", path)
    simulator = Simulator(_TIMEOUT_S, _HEAP_MB)
    try:
        found = _find(simulator, task, variation, simplifications)
    finally:
        simulator.close()
    write_cached(path, msgspec.json.encode(found))
    return found


def _find(simulator: Simulator, task: str, variation: int, simplifications: str) -> GoldPath:
    simulator.load(task, variation, simplifications, gold=True)
    actions = simulator.gold_actions()
    for action in actions:
        simulator.step(action)
    if simulator.score() < 100:
        logger.warning("the simulator's way through %s/%d does not solve it", task, variation)
        return GoldPath([], 0)
    return GoldPath(actions, simulator.moves())
