"""Tower: climb to the top by opening the right door on each floor.

The quickstart's world. It needs no extra, and its observation is the whole state, so that even a
tiny policy can read it: `agentgym play tower`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from agentgym_env import TaskSet, TextEnv

DOORS: Final = ("red", "blue", "green", "gold")
SIGNS: Final = (
    "moon", "star", "fish", "bell", "leaf", "ring", "wolf", "bear", "swan", "oak", "fir", "rose",
)  # fmt: skip
FLOORS: Final = (4, 5, 6, 7, 8, 9)
TOWERS: Final = {"train": 30, "test": 10}
"""Towers with each number of floors, by split."""
_SIGNS_OF: Final = {"train": range(9), "test": range(9, 12)}
"""Which of the signs occur on a floor, by split; see `signs_on`."""


def signs_on(floor: int, split: str) -> list[str]:
    """The signs that a floor, counted from 1, may have in a split.

    No observation of one split occurs in another. The selection moves on with the floor, so that
    each sign occurs on some floor of every split.
    """
    return [SIGNS[(number + 5 * floor) % len(SIGNS)] for number in _SIGNS_OF[split]]


def door_of(sign: str) -> str:
    """The door that leads up on a floor with this sign."""
    return DOORS[SIGNS.index(sign) % len(DOORS)]


def towers(split: str, floors: int) -> list[tuple[str, ...]]:
    """The towers of a split with this many floors: different ones, as their signs from below."""
    rng = random.Random(f"tower/{split}/{floors}")
    found: dict[tuple[str, ...], None] = {}
    while len(found) < TOWERS[split]:
        signs = (signs_on(floor, split) for floor in range(1, floors + 1))
        found[tuple(each[int(rng.random() * len(each))] for each in signs)] = None
    return list(found)


_TOWERS: Final = {
    f"{split}-{floors}-{number}": signs
    for split in TOWERS
    for floors in FLOORS
    for number, signs in enumerate(towers(split, floors))
}


class Tower(TextEnv):
    """Climb to the top of a tower by opening the right door on each floor.

    ## Description
    Each floor has a sign and four doors. The right door leads up, any other one a floor down. A
    sign means the same door everywhere. It is the quickstart's world: it needs no extra, and a
    tiny policy learns it in minutes.

    ## Observation
    The floor, the number of floors and the sign: `Floor 1 of 4, sign: wolf`. It is the whole state.

    ## Actions
    One of the doors `red`, `blue`, `green` and `gold`. Any other text costs a turn.

    ## Rewards
    1 at the top, 0 before.

    ## Termination
    Terminated at the top; truncated after 50 turns.

    ## Tasks
    A task is a tower, named by its split, its floors and a number; categories are the numbers of
    floors.

    | split | tasks |
    |---|---|
    | `train` | 180 |
    | `test` | 60 |

    A sign that is on some floor of a test tower is not on that floor in `train`, but on others.

    ## Arguments
    None.

    ## Data
    None.

    ## Registered id
    `agentgym/Tower-v0`
    """

    instruction = (
        "Climb to the top of the tower. The sign shows which door leads up, and a sign means the "
        f"same door on every floor. Answer with one word: {', '.join(DOORS)}."
    )
    tasks = TaskSet(
        {split: [task for task in _TOWERS if task.startswith(split)] for split in TOWERS},
        {task: f"{len(signs)} floors" for task, signs in _TOWERS.items()},
    )

    def _reset(self, task: str) -> str:
        self.signs = _TOWERS[task]
        self.floor = 1
        self.invalid = False
        return self._sight()

    def _step(self, action: str) -> tuple[str, float, bool]:
        self.invalid = action not in DOORS
        if self.invalid:
            return f"Answer with one of: {', '.join(DOORS)}. {self._sight()}", 0.0, False
        up = action == door_of(self.signs[self.floor - 1])
        self.floor = self.floor + 1 if up else max(1, self.floor - 1)
        return self._sight(), float(self.success()), self.success()

    def success(self) -> bool:
        """Whether the top is reached."""
        return self.floor > len(self.signs)

    def invalid_action(self) -> bool:
        """Whether the last action was none of the doors."""
        return self.invalid

    def available_actions(self) -> list[str]:
        """The four doors; three of them lead down."""
        return list(DOORS)

    def expert(self) -> Iterator[str]:
        """The right door of each floor."""
        while not self.success():
            yield door_of(self.signs[self.floor - 1])

    def _sight(self) -> str:
        if self.success():
            return "You are at the top."
        return f"Floor {self.floor} of {len(self.signs)}, sign: {self.signs[self.floor - 1]}"
