"""Proof that one search does not answer a question: a bound on BM25 scores, without an index.

The third best score among some passages is at most the third best among all. A passage below it
is therefore not among the three that a search for the question brings.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from agentgym_servers.retrieval.passages import Passage

TOP = 3
"""How many passages a search brings."""
_K1, _B = 1.5, 0.75
_MARGIN = 1.02
_RARE = 60
"""A word in fewer passages than these leads to the passages that a bound is taken from."""
_WORD = re.compile(r"\b\w\w+\b")
STOPWORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then
    there these they this to was will with""".split()  # noqa: SIM905
)
"""The words that a search passes over, as bm25s and Lucene have them."""


class OneSearch:
    """What a search for a question's own text can bring from a corpus."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._place = {passage.id: place for place, passage in enumerate(passages)}
        self._counts = [dict(Counter(words_of(passage.contents))) for passage in passages]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._mean = sum(self._lengths) / len(passages)
        self._holders: dict[str, list[int]] = {}
        for place, counts in enumerate(self._counts):
            for word in counts:
                self._holders.setdefault(word, []).append(place)

    def misses(self, question: str, ids: Iterable[str]) -> bool:
        """Whether none of these passages can be among the first three for the question."""
        query = self._weighed(words_of(question))
        bound = self._bound(query)
        return all(self._score(query, self._place[id]) * _MARGIN < bound for id in ids)

    def naming(self, name: str) -> list[str]:
        """The ids of the passages that hold a name."""
        holders = [self._holders.get(word, []) for word in words_of(name)]
        rarest = min(holders, key=len, default=[])
        return [self._passages[p].id for p in rarest if name in self._passages[p].contents]

    def _weighed(self, words: Sequence[str]) -> list[tuple[str, float]]:
        """Each word that some passage has, with how much it counts."""
        total, query = len(self._passages), []
        for word in words:
            held = len(self._holders.get(word, ()))
            if held:
                query.append((word, math.log(1 + (total - held + 0.5) / (held + 0.5))))
        return query

    def _bound(self, query: Sequence[tuple[str, float]]) -> float:
        near: set[int] = set()
        for word, _ in query:
            if len(self._holders[word]) < _RARE:
                near.update(self._holders[word])
        best = sorted((self._score(query, place) for place in near), reverse=True)
        return best[TOP - 1] if len(best) >= TOP else 0.0

    def _score(self, query: Sequence[tuple[str, float]], place: int) -> float:
        counts = self._counts[place]
        norm = _K1 * (1 - _B + _B * self._lengths[place] / self._mean)
        score = 0.0
        for word, weight in query:
            if word in counts:
                score += weight * counts[word] / (counts[word] + norm)
        return score


def words_of(text: str) -> list[str]:
    """The words of a text that a search looks at."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOPWORDS]
