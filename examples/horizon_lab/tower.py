"""Tower: climb to the top by opening the right door of each floor, in 2 to 24 turns.

Each floor has a sign, and a sign always means the same door. The signs of higher floors are other
ones, so that what they mean can only be learned up there. The observation is the whole state, so
that even a tiny policy can read it: `agentgym play tower:Tower` in this folder.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentgym_env import TaskSet, TextEnv
from agentgym_env.errors import BadRequest

DOORS = ("red", "blue", "green", "gold")
BACK = "back"
ACTIONS = (*DOORS, BACK)
SIGNS = (
    ("moon", "star", "fish", "bell", "leaf", "ring", "drum", "harp", "lamp", "rose"),
    ("crow", "wolf", "bear", "hare", "swan", "mole", "toad", "goat", "lynx", "deer"),
    ("oak", "elm", "fir", "ash", "yew", "bay", "fig", "ivy", "rye", "hop"),
)
"""The signs of each band of floors."""
BANDS = (4, 12, 24)
"""The highest floor of each band."""
LENGTHS = (2, 3, 4, 6, 8, 10, 12, 13, 14, 16, 20, 24)
"""Floors of the towers, which is the number of turns of the shortest solution.

In each band the first lengths add one or two floors, so that a policy that has learned the band
below can find out what a new sign means.
"""
TOWERS = {"train": 20, "dev": 4, "test": 5}
"""Towers of each length in a split; of two floors there are only four outside `train`."""
_SIGNS_OF = {"train": range(6), "dev": range(6, 8), "test": range(8, 10)}
"""Which of a floor's ten signs occur in a split: see `signs_at`."""


def signs_at(floor: int, split: str) -> list[str]:
    """The signs that a floor, counted from 1, may have in a split.

    They differ from split to split, so no observation of one occurs in another. The division moves
    on with the floor: each sign of a band occurs on other floors of every split.
    """
    band = next(number for number, highest in enumerate(BANDS) if floor <= highest)
    return [SIGNS[band][(number + 2 * floor) % 10] for number in _SIGNS_OF[split]]


def doors_of(sign: str) -> tuple[str, str]:
    """(the door that leads up, the door that leads to a dead end); the others lead down."""
    number = next(signs.index(sign) for signs in SIGNS if sign in signs)
    return DOORS[number % 4], DOORS[(number + 1 + number // 4) % 4]


def towers(split: str, floors: int) -> list[tuple[str, ...]]:
    """The different towers of a split with so many floors: their signs, from the lowest up."""
    rng = random.Random(f"tower/{split}/{floors}")
    found: dict[tuple[str, ...], None] = {}
    possible = len(_SIGNS_OF[split]) ** floors
    while len(found) < min(TOWERS[split], possible):
        choices = (signs_at(floor, split) for floor in range(1, floors + 1))
        found[tuple(signs[int(rng.random() * len(signs))] for signs in choices)] = None
    return list(found)


_TOWERS = {
    f"{split}-{floors}-{number}": signs
    for split in TOWERS
    for floors in LENGTHS
    for number, signs in enumerate(towers(split, floors))
}


def make_tasks(highest: int) -> TaskSet:
    """The towers with up to `highest` floors; a task is named by its split, floors and number."""
    splits: dict[str, list[str]] = {split: [] for split in TOWERS}
    categories = {}
    for task, signs in _TOWERS.items():
        if len(signs) <= highest:
            splits[task.partition("-")[0]].append(task)
            band = sum(len(signs) > end for end in BANDS)
            categories[task] = ("short", "middle", "long")[band]
    return TaskSet(splits, categories)


class Tower(TextEnv):
    """Open the right door of each floor. Any other door costs turns.

    Of the three wrong doors, one leads to a dead end, from which it takes `dead_end` turns to come
    back, and two lead down `fall` floors. Reward: 1 at the top, which ends the episode, and nothing
    before; if `shaped`, each floor that is reached for the first time pays its share of the 1.
    """

    instruction = (
        "Climb to the top of the tower. A sign shows which door leads up, and a sign means the "
        f"same door everywhere. Answer with one word: {', '.join(DOORS)}, or back, which leads "
        "down, and out of a dead end."
    )
    tasks = make_tasks(max(LENGTHS))

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        fall: int = 1,
        dead_end: int = 2,
        shaped: bool = False,
    ) -> None:
        super().__init__(render_mode)
        for name, value in (("fall", fall), ("dead_end", dead_end)):
            if not isinstance(value, int) or value < 0:
                raise BadRequest(f"{name} must be a number of at least 0, got {value!r}")
        self.fall, self.dead_end, self.shaped = fall, dead_end, shaped

    def _reset(self, task: str) -> str:
        self.signs = _TOWERS[task]
        self.floor, self.highest = 1, 1
        self.lost = 0
        self.invalid = False
        return self._sight()

    def _step(self, action: str) -> tuple[str, float, bool]:
        self.invalid = action not in ACTIONS
        if self.invalid:
            return f"Answer with one of: {', '.join(ACTIONS)}. {self._sight()}", 0.0, False
        if self.lost:
            self.lost -= action == BACK
            return self._sight(), 0.0, False
        up, dead = doors_of(self.signs[self.floor - 1])
        if action == up:
            return self._climb()
        if action == dead and self.dead_end:
            self.lost = self.dead_end
        else:
            self.floor = max(1, self.floor - (1 if action == BACK else self.fall))
        return self._sight(), 0.0, False

    def _climb(self) -> tuple[str, float, bool]:
        self.floor += 1
        is_new, self.highest = self.floor > self.highest, max(self.floor, self.highest)
        if self.shaped:
            return self._sight(), is_new / len(self.signs), self.success()
        return self._sight(), float(self.success()), self.success()

    def success(self) -> bool:
        """Whether the top is reached."""
        return self.floor > len(self.signs)

    def invalid_action(self) -> bool:
        """Whether the last action was none of the five words."""
        return self.invalid

    def available_actions(self) -> list[str]:
        """The five words; those that lead down are among them."""
        return list(ACTIONS)

    def expert(self) -> Iterator[str]:
        """The shortest way from wherever things are."""
        while not self.success():
            yield BACK if self.lost else doors_of(self.signs[self.floor - 1])[0]

    def _sight(self) -> str:
        if self.success():
            return "top"
        sign = self.signs[self.floor - 1]
        lost = f", lost {self.lost}" if self.lost else ""
        return f"{self.floor} of {len(self.signs)}, {sign}{lost}"


class TowerTo4(Tower):
    """The towers with at most 4 floors."""

    tasks = make_tasks(4)


class TowerTo12(Tower):
    """The towers with at most 12 floors."""

    tasks = make_tasks(12)
