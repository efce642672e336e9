"""Random draws that are the same on every Python: all of them are made of `random()` alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A stream of draws from a seed; only `random.Random.random` is promised never to change."""

    def __init__(self, *seed: int | str) -> None:
        self._random = random.Random("/".join(map(str, seed))).random

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random() < probability

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[int(self._random() * len(options))]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """The options in another order."""
        order = list(options)
        for last in range(len(order) - 1, 0, -1):
            other = int(self._random() * (last + 1))
            order[last], order[other] = order[other], order[last]
        return order

    def sample(self, options: Sequence[T], size: int) -> list[T]:
        """`size` of the options, each at most once; fewer where there are fewer."""
        if size * 8 > len(options):
            return self.shuffled(options)[:size]
        chosen: dict[int, T] = {}
        while len(chosen) < size:
            place = int(self._random() * len(options))
            chosen[place] = options[place]
        return list(chosen.values())
