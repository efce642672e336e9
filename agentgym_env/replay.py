"""Repeats a recorded episode and finds the first difference; knows nothing about files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import gymnasium

from agentgym_env.errors import AgentGymError, EpisodeOver, teaches
from agentgym_env.trajectory import Trajectory, Turn

_ENDED: Final = frozenset({"success", "failure", "world_limit"})


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between a replay and the recorded episode."""

    turn: int
    """Counted from 1, as the trajectory's turns are; 0 is the first observation."""
    what: str
    """`observation`, `reward`, `end`, `success`, or `failure` if the environment failed."""
    stored: str
    replayed: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    turns: int
    """Number of repeated actions."""
    difference: Difference | None
    """None if everything is equal."""


def is_replayable(trajectory: Trajectory) -> bool:
    """Whether the episode ended; one that was lost has nothing to compare."""
    return teaches(trajectory.outcome)


def replay_episode(env: gymnasium.Env[str, str], trajectory: Trajectory) -> Replayed:
    """Reset `env` to the episode's task and seed, and take its actions again.

    Observations and rewards are compared to the last character and bit, and so is whether the
    episode ended there and whether it succeeded.
    """
    taken = 0
    try:
        first = _reset(env, trajectory)
        if first != trajectory.observation:
            return Replayed(0, Difference(0, "observation", trajectory.observation, first))
        ended, success = False, False
        for number, turn in _sent(trajectory):
            if taken and turn.info.get("turn") == 1:
                _reset(env, trajectory)  # the agent began the episode once more
            observation, reward, terminated, truncated, info = env.step(turn.action)
            taken, success = taken + 1, bool(info.get("success"))
            # Where both limits coincide, the horizon was recorded.
            ended = terminated or (truncated and trajectory.outcome != "horizon")
            found = _compared(number, turn, observation, float(reward))
            if found is not None:
                return Replayed(taken, found)
    except EpisodeOver:
        found = Difference(number, "end", "the episode goes on", "it had ended", turn.action)
        return Replayed(taken, found)
    except AgentGymError as error:
        return Replayed(taken, Difference(taken + 1, "failure", "", str(error)))
    return Replayed(taken, _end(trajectory, ended, success) if taken else None)


def _reset(env: gymnasium.Env[str, str], trajectory: Trajectory) -> str:
    return env.reset(seed=trajectory.seed, options={"task": trajectory.task})[0]


def _sent(trajectory: Trajectory) -> Iterator[tuple[int, Turn]]:
    """(its number, the turn) of each turn that reached the world and was answered.

    The world's infos count its turns. Trajectories of other programs have no infos; there a turn
    with an action is one that was sent.
    """
    counted = any("turn" in turn.info for turn in trajectory.turns)
    for number, turn in enumerate(trajectory.turns, 1):
        if "turn" in turn.info if counted else turn.action:
            yield number, turn


def _compared(number: int, turn: Turn, observation: str, reward: float) -> Difference | None:
    if observation != turn.observation:
        return Difference(number, "observation", turn.observation, observation, turn.action)
    stored = float(turn.info.get("reward_of_earlier_trial", turn.reward))
    if reward != stored:
        return Difference(number, "reward", repr(stored), repr(reward), turn.action)
    return None


def _end(trajectory: Trajectory, ended: bool, success: bool) -> Difference | None:
    last, stored = len(trajectory.turns), trajectory.outcome in _ENDED
    if ended != stored:
        words = {True: "it ended", False: "the episode goes on"}
        return Difference(last, "end", words[stored], words[ended])
    if success != trajectory.success:
        words = {True: "success", False: "no success"}
        return Difference(last, "success", words[trajectory.success], words[success])
    return None
