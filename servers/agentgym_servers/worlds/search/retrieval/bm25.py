"""BM25 over an index in bm25s' format, through memory maps; needs numpy alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from agentgym_servers.worlds.search.retrieval.manifest import Bm25Settings
from agentgym_servers.worlds.search.retrieval.passages import damaged, loaded, mapped
from agentgym_servers.worlds.search.retrieval.ranking import Ranking, Scores, best, score_space


def _read_terms(path: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, str(error)) from error


def splitter(settings: Bm25Settings) -> Callable[[str], list[str]]:
    """A function from text to its tokens, stop words included."""
    find = re.compile(settings.token_pattern).findall
    if settings.lowercase:
        return lambda text: find(text.lower())
    return find


SCORES_FILE: Final = "data.csc.index.npy"

PASSAGES_FILE: Final = "indices.csc.index.npy"

STARTS_FILE: Final = "indptr.csc.index.npy"

TERMS_FILE: Final = "vocab.index.json"

PARAMS_FILE: Final = "params.index.json"

COMMON_BYTES: Final = 64 * 2**20
"""Most memory for the scores of common terms, which are kept after their first use."""

_DENSE = 16


class Bm25Ranker:
    """Adds up the scores that the index has for each of a query's tokens."""

    def __init__(self, folder: Path, settings: Bm25Settings, passages: int) -> None:
        self._scores = mapped(folder / SCORES_FILE)  # (postings,) float32
        self._numbers = mapped(folder / PASSAGES_FILE)  # (postings,) int32
        self._numbers_file = folder / PASSAGES_FILE
        self._starts = loaded(folder / STARTS_FILE)  # (terms + 1,) int64
        self._terms = _read_terms(folder / TERMS_FILE)
        self._check(folder)
        self._split = splitter(settings)
        self._passages = passages
        self._common = self._common_terms()
        self._spread: dict[int, Scores] = {}
        self._own = threading.local()

    def _check(self, folder: Path) -> None:
        """Raise `BadRequest` for numbers that lead out of the files."""
        starts, numbers = self._starts, self._numbers
        if starts[0] != 0 or starts[-1] != len(numbers) or (np.diff(starts) < 0).any():
            raise damaged(folder / STARTS_FILE, f"it does not divide {len(numbers)} postings")
        if len(self._scores) != len(numbers):
            raise damaged(folder / SCORES_FILE, f"{len(self._scores)} scores, not {len(numbers)}")
        if not 0 <= min(self._terms.values()) <= max(self._terms.values()) < len(starts) - 1:
            raise damaged(folder / TERMS_FILE, f"it numbers terms beyond {len(starts) - 2}")

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """At most `k` passages that share a token with the query, for each."""
        try:
            return [self._rank(query, k) for query in queries]
        except IndexError as error:
            # All of them are not read when the index is opened: it may have gigabytes.
            raise damaged(self._numbers_file, str(error)) from error

    def _rank(self, query: str, k: int) -> Ranking:
        sums = self._space()
        for token in self._split(query):
            term = self._terms.get(token)
            if term is None:
                continue
            if term in self._common:
                sums += self._spread_out(term)
            else:
                here = slice(self._starts[term], self._starts[term + 1])
                np.add.at(sums, self._numbers[here], self._scores[here])
        return best(sums, k)

    def _common_terms(self) -> frozenset[int]:
        """The terms whose scores are quicker added for all passages than for those that have it."""
        held = np.diff(self._starts)  # (terms,)
        most = max(1, COMMON_BYTES // (4 * self._passages))
        commonest = np.argsort(-held, kind="stable")[:most]
        return frozenset(commonest[held[commonest] * _DENSE > self._passages].tolist())

    def _spread_out(self, term: int) -> Scores:
        """A common term's score in every passage, 0 where it is not."""
        spread = self._spread.get(term)
        if spread is None:
            spread = score_space(self._passages)
            here = slice(self._starts[term], self._starts[term + 1])
            spread[self._numbers[here]] = self._scores[here]
            self._spread[term] = spread
        return spread

    def _space(self) -> Scores:
        """Zeros, in the same memory for each query of a thread."""
        space: Scores | None = getattr(self._own, "space", None)
        if space is None:
            space = self._own.space = score_space(self._passages)
        else:
            space.fill(0)
        return space
