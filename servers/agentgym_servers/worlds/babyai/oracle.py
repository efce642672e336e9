"""BabyAI's oracle: minigrid's bot, translated into the fewest text actions that follow it."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from minigrid.utils.baby_ai_bot import BabyAIBot

from agentgym_servers.worlds.babyai.view import FORWARD, LEFT, RIGHT, TOGGLE

logger = logging.getLogger(__name__)

CALL_LIMIT = 1_500_000
"""Calls within which the bot must find its way; it can wander for ever.

About three seconds. It is no time, so that the expert plays the same on every machine; what the bot
solves takes at most half of it.
"""

_BOT_FILE = BabyAIBot.replan.__code__.co_filename

_VECTORS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_MOVES = frozenset({LEFT, RIGHT, FORWARD})

Pose = tuple[int, int, int]
"""Column, row and direction in the world."""


@dataclass(frozen=True, slots=True)
class _Track:
    """The bot's way from here to the goal: actions[t] leads from poses[t] to poses[t + 1]."""

    actions: list[int]
    poses: list[Pose]
    progress: list[tuple[Any, ...]]
    """How much of the instruction is done at each pose."""

    def after(self, taken: int) -> _Track:
        """What is left when some of the way is behind."""
        return _Track(self.actions[taken:], self.poses[taken:], self.progress[taken:])


def follow_bot(look: Callable[[], tuple[Any, Mapping[str, list[int]]]]) -> Iterator[str]:
    """Yield text actions; `look` gives the world and the current plan of each text."""
    track, expected = _Track([], [], []), -1
    while True:
        world, plans = look()
        if world.step_count != expected or not track.actions:
            # At the start, or another action was taken in between: plan again.
            found = _track(world)
            if found is None:
                return
            track = found
        text, taken = _furthest(track, plans)
        if text is None:
            return
        track = track.after(taken)
        expected = world.step_count + len(plans[text])
        yield text


def _furthest(track: _Track, plans: Mapping[str, list[int]]) -> tuple[str | None, int]:
    """The plan that goes furthest along the track, and how many of its actions it replaces."""
    best, most = None, 0
    for text, plan in plans.items():
        taken = _taken(track, plan)
        if taken > most:
            best, most = text, taken
    return best, most


def _taken(track: _Track, plan: list[int]) -> int:
    """How far along the track a plan ends: same pose, and the same deeds on the way."""
    pose, deeds = track.poses[0], []
    for action in plan:
        if action in _MOVES:
            pose = _moved(pose, action)
        else:
            deeds.append((pose, action))
    done: list[tuple[Pose, int]] = []
    best = 0
    for index, action in enumerate(track.actions):
        if action not in _MOVES:
            done.append((track.poses[index], action))
        if done != deeds[: len(done)]:
            break
        if len(done) == len(deeds) and track.poses[index + 1] == pose:
            best = index + 1
        if track.progress[index + 1] != track.progress[0]:
            # A part of the instruction is done by being here: another way may not pass here.
            break
    return best


def _moved(pose: Pose, action: int) -> Pose:
    x, y, direction = pose
    if action == LEFT:
        return x, y, (direction - 1) % 4
    if action == RIGHT:
        return x, y, (direction + 1) % 4
    dx, dy = _VECTORS[direction]
    return x + dx, y + dy, direction


def _track(world: Any) -> _Track | None:
    """What the bot does from the world's present state on, or None if it does not get there."""
    copied = copy.deepcopy(world)
    actions: list[int] = []
    poses, progress = [_pose(copied)], [_progress(copied.instrs)]
    last: Any = None
    try:
        with _call_limit(CALL_LIMIT):
            bot = BabyAIBot(copied)
            while True:
                last = bot.replan(last)
                action = int(last)
                _, reward, terminated, truncated, _ = copied.step(action)
                if action <= TOGGLE:
                    actions.append(action)
                    poses.append(_pose(copied))
                    progress.append(_progress(copied.instrs))
                if terminated or truncated:
                    return _Track(actions, poses, progress) if reward > 0 else None
    except Exception as error:
        # The bot, which is not ours, gives up by whatever exception its search runs into.
        logger.debug("the bot fails: %s: %s", type(error).__name__, error)
    return None


@contextmanager
def _call_limit(limit: int) -> Iterator[None]:
    """Raise `TimeoutError` after this many calls and returns in the bot's own code."""
    left = limit

    def watch(frame: FrameType, event: str, argument: object) -> None:
        # Only at calls in the bot's own code, which catches nothing: raised in a callback of the
        # garbage collector, which may run anywhere, an error is dropped, and this hook with it.
        nonlocal left
        if frame.f_code.co_filename == _BOT_FILE:
            left -= 1
            if left < 0:
                raise TimeoutError(f"the bot takes more than {limit} calls")

    before = sys.getprofile()
    # Called at every call of a function, in this thread alone; a signal would need the main one.
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)


def _pose(world: Any) -> Pose:
    x, y = world.agent_pos
    return int(x), int(y), int(world.agent_dir)


def _progress(instruction: Any) -> tuple[Any, ...]:
    """Which parts of an instruction are done."""
    parts = [getattr(instruction, name, None) for name in ("instr_a", "instr_b")]
    done = (getattr(instruction, "a_done", None), getattr(instruction, "b_done", None))
    return (*done, *(_progress(part) for part in parts if part is not None))
