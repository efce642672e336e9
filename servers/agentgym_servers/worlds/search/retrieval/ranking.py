"""Ranks the passages of an index by number; knows nothing about their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_ROWS = 64

Numbers = NDArray[np.int64]

Scores = NDArray[np.float32]


class Ranking(NamedTuple):
    """Numbers of passages, best first, equal ones by number; and their scores."""

    numbers: Numbers  # (at most k,)
    scores: Scores  # (at most k,)


class Ranker(Protocol):
    """Ranks the passages of an index by number; knows nothing about their text."""

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """At most `k` passages for each query; safe to call from several threads."""
        ...


def score_space(passages: int) -> Scores:
    """Zeros for the scores of so many passages, with room so that `best` can fold them."""
    return np.zeros(-(-passages // _ROWS) * _ROWS, np.float32)


def best(scores: Scores, k: int) -> Ranking:
    """The `k` greatest of the scores in a `score_space` that are above 0.

    They are folded into columns. The k-th greatest of the columns' maxima is a lower bound of the
    k-th greatest score, so one quick pass finds the few columns that are worth a look.
    """
    folded = scores.reshape(_ROWS, -1)  # (64, C)
    tops = folded.max(axis=0)  # (C,)
    bound = np.partition(tops, -k)[-k] if k < len(tops) else np.float32(0)
    columns = np.flatnonzero(tops >= bound)  # (c,)
    few = folded[:, columns]  # (64, c)
    rows, places = np.nonzero((few >= bound) & (few > 0))
    numbers = rows * folded.shape[1] + columns[places]
    return ordered(numbers, few[rows, places], k)


def ordered(numbers: Numbers, scores: Scores, k: int) -> Ranking:
    """The `k` greatest, best first, equal ones by number."""
    order = np.lexsort((numbers, -scores))[:k]
    return Ranking(numbers[order], scores[order])
