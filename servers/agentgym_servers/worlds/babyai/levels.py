"""The levels of BabyAI, and the tasks on them."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import gymnasium
import minigrid.envs.babyai.core.roomgrid_level as roomgrid_level
from gymnasium.envs.registration import load_env_creator

from agentgym_env.errors import BadRequest
from agentgym_env.text_env import TaskSet
from agentgym_servers.worlds.paper import paper_numbers, paper_selections

logger = logging.getLogger(__name__)

TRAIN_SEEDS: Final = range(200)

TEST_SEEDS: Final = range(200, 205)

ORIGINAL_LEVELS: Final = (
    "GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObjS6", "GoToLocalS8N7",
    "GoToObjMazeS7", "GoToImpUnlock", "GoToSeqS5R2", "GoToRedBlueBall", "GoToDoor",
    "GoToObjDoor", "Open", "OpenRedDoor", "OpenDoorLoc", "OpenRedBlueDoorsDebug",
    "OpenDoorsOrderN4Debug", "Pickup", "UnblockPickup", "PickupLoc", "PickupDistDebug",
    "PickupAbove", "PutNextLocalS6N4", "PutNextS7N4Carrying", "Unlock", "UnlockLocalDist",
    "KeyInBox", "UnlockPickupDist", "BlockedUnlockPickup", "UnlockToUnlock", "ActionObjDoor",
    "FindObjS7", "KeyCorridorS6R3", "OneRoomS20", "MoveTwoAcrossS8N9", "SynthS5R2",
    "SynthLoc", "SynthSeq", "MiniBossLevel", "BossLevel", "BossLevelNoUnlock",
)  # fmt: skip
"""AgentGym's 40 levels: its number n is level n % 40 with seed n // 40."""


@cache
def level_ids() -> dict[str, str]:
    """Level name -> minigrid's id, by name: `GoToRedBall` -> `BabyAI-GoToRedBall-v0`."""
    ids = [env_id for env_id in gymnasium.registry if env_id.startswith("BabyAI-")]
    return {env_id.removeprefix("BabyAI-").rpartition("-v")[0]: env_id for env_id in sorted(ids)}


@cache
def babyai_tasks() -> TaskSet:
    """Every level with 200 seeds to train on and 5 to test on.

    Some levels are twins: with a seed they begin alike. A seed is on one side for all levels, so
    twins are never on two sides.
    """
    splits = {
        name: [f"{level}/{seed}" for level in level_ids() for seed in seeds]
        for name, seeds in (("train", TRAIN_SEEDS), ("test", TEST_SEEDS))
    }
    # The paper's tasks have some seeds that are in no split.
    numbers = {*range(len(ORIGINAL_LEVELS) * TEST_SEEDS.stop), *paper_numbers("babyai")}
    numbered = {n: original_task(n) for n in sorted(numbers)}
    selections = paper_selections("babyai", numbered)
    every = [*splits.values(), *selections.values()]
    return TaskSet(
        splits,
        categories={task: task.partition("/")[0] for ids in every for task in ids},
        aliases={f"babyai_{n}": task for n, task in numbered.items()},
        selections=selections,
    )


def tasks_of(levels: Sequence[str]) -> TaskSet:
    """The tasks of some levels, in `train` and `test`. Raises `BadRequest` for an unknown level."""
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not levels:
        raise BadRequest(f"levels is a list of names, such as ['GoToObj'], got {levels!r:.80}")
    for level in levels:
        if level not in level_ids():
            near = difflib.get_close_matches(str(level)[:100], level_ids(), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see `level_ids()`"
            raise BadRequest(f"BabyAI has no level {str(level)[:80]!r}; {hint}")
    return _tasks_of(tuple(levels))


def original_task(data_idx: int) -> str:
    """The task that AgentGym numbers `data_idx`."""
    seed, level = divmod(data_idx, len(ORIGINAL_LEVELS))
    return f"{ORIGINAL_LEVELS[level]}/{seed}"


def make_level(level: str) -> Any:
    """A fresh world of a level, without Gymnasium's wrappers."""
    spec = gymnasium.spec(level_ids()[level])
    entry_point = spec.entry_point
    make: Callable[..., Any] = (
        load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point  # type: ignore[assignment]
    )
    world = make(**spec.kwargs)
    # minigrid's own observation is not used, and is most of the cost of a step.
    world.gen_obs = dict
    return world


@cache
def _tasks_of(levels: tuple[str, ...]) -> TaskSet:
    every, chosen = babyai_tasks(), frozenset(levels)
    splits = {
        name: [task for task in ids if every.category(task) in chosen]
        for name, ids in every.splits.items()
    }
    kept = [task for ids in splits.values() for task in ids]
    return TaskSet(splits, categories={task: task.partition("/")[0] for task in kept})


def _log(*words: Any) -> None:
    logger.debug("%s", " ".join(map(str, words)))


# minigrid prints each layout that it rejects.
vars(roomgrid_level)["print"] = _log
