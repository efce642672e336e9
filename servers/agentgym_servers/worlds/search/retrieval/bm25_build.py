"""Makes a BM25 index in bm25s' format from chunks on disk, in memory that does not grow with them.

bm25s' own `index` keeps every token of the corpus in Python lists. Here a chunk is cut, counted
and sorted by token on its own, and a second pass deals the chunks' counts out to their places in
the memory-mapped result. Scores are bm25s' to the bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_servers.worlds.search.retrieval.bm25 import (
    PARAMS_FILE,
    PASSAGES_FILE,
    SCORES_FILE,
    STARTS_FILE,
    TERMS_FILE,
    splitter,
)
from agentgym_servers.worlds.search.retrieval.manifest import Backend, Bm25Settings
from agentgym_servers.worlds.search.retrieval.passages import new_map

try:
    from bm25s import __version__ as bm25s_version
    from bm25s.stopwords import STOPWORDS_EN
except ModuleNotFoundError as error:
    raise MissingExtra("a BM25 index needs bm25s: pip install 'agentgym-sdk[search]'") from error

Ints = NDArray[np.int64]


class Bm25Maker:
    """Makes the files of a BM25 index."""

    backend: Backend = "bm25"

    def __init__(self, *, k1: float = 1.5, b: float = 0.75, chunk_passages: int = 10_000) -> None:
        if not 0 <= k1 < math.inf or not 0 <= b <= 1:
            raise BadRequest(f"BM25 takes k1 of at least 0 and b of 0 to 1, got k1 {k1}, b {b}")
        self.settings = Bm25Settings(k1=k1, b=b, stop_words=tuple(STOPWORDS_EN))
        self.versions = {"bm25s": str(bm25s_version), "numpy": np.__version__}
        self.chunk_passages = chunk_passages
        self._split = splitter(self.settings)

    def write_chunk(self, folder: Path, texts: Sequence[str]) -> None:
        """Count the tokens of each text: for each token its texts in order, and how often."""
        terms = _Numbering()
        tokens = [self._split(text) for text in texts]
        flat = np.fromiter((terms[t] for ts in tokens for t in ts), np.int64)  # (tokens,)
        number = np.repeat(np.arange(len(texts)), [len(ts) for ts in tokens])  # (tokens,)
        kept, names = _without(terms, self.settings.stop_words)
        flat = kept[flat]
        number, flat = number[flat >= 0], flat[flat >= 0]
        lengths = np.bincount(number, minlength=len(texts))  # (N,)
        pairs, often = np.unique(flat * len(texts) + number, return_counts=True)  # (postings,)
        (folder / "terms.json").write_bytes(msgspec.json.encode(names))
        np.save(folder / "lengths.npy", lengths.astype(np.int32))
        np.save(folder / "texts_with.npy", np.bincount(pairs // len(texts), minlength=len(names)))
        np.save(folder / "text.npy", (pairs % len(texts)).astype(np.int32))
        np.save(folder / "often.npy", often.astype(np.int32))

    def write_index(
        self, chunks: Sequence[Path], folder: Path, progress: Callable[[int, int], None]
    ) -> None:
        """Deal the chunks' counts out to their places; `progress` gets chunks and passes."""
        terms = _Numbering()
        texts_with: Ints = np.zeros(0, np.int64)  # (terms,)
        tokens = passages = 0
        for done, (chunk, ours) in enumerate(_numbered(chunks, terms)):
            texts_with = _grown(texts_with, len(terms))
            np.add.at(texts_with, ours, np.load(chunk / "texts_with.npy"))
            lengths = np.load(chunk / "lengths.npy")
            tokens, passages = tokens + int(lengths.sum()), passages + len(lengths)
            progress(done + 1, 2 * len(chunks))
        if not terms:
            raise BadRequest("no passage of the corpus contains a word")
        starts: Ints = np.concatenate([[0], np.cumsum(texts_with)])  # (terms + 1,)
        np.save(folder / STARTS_FILE, starts)
        (folder / TERMS_FILE).write_bytes(msgspec.json.encode(terms))
        self._write_params(folder / PARAMS_FILE, passages)
        weigh = _Weigher(self.settings, texts_with, passages, tokens / passages)
        size = int(starts[-1])
        scores = new_map(folder / SCORES_FILE, np.float32, size)
        numbers = new_map(folder / PASSAGES_FILE, np.int32, size)
        heads, first = starts[:-1].copy(), 0
        for done, (chunk, ours) in enumerate(_numbered(chunks, terms)):
            counts = _Counts.load(chunk)
            places = _places(heads, ours, counts.texts_with)
            numbers[places] = counts.text + first
            scores[places] = weigh(np.repeat(ours, counts.texts_with), counts)
            heads[ours] += counts.texts_with
            first += len(counts.lengths)
            progress(len(chunks) + done + 1, 2 * len(chunks))

    def _write_params(self, path: Path, passages: int) -> None:
        """What `bm25s.BM25.load` reads."""
        ours = self.settings
        params = {
            "k1": ours.k1, "b": ours.b, "delta": 0.5, "method": ours.method,
            "idf_method": ours.method, "dtype": "float32", "int_dtype": "int32",
            "num_docs": passages, "version": bm25s_version, "backend": "numpy",
        }  # fmt: skip
        path.write_text(json.dumps(params, indent=4))


class _Numbering(dict[str, int]):
    """Numbers keys in order of first appearance."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number


class _Counts(NamedTuple):
    """The files of a chunk's folder; postings are sorted by term, then text."""

    lengths: NDArray[np.int32]  # (N,) tokens of each text
    texts_with: Ints  # (terms,)
    text: NDArray[np.int32]  # (postings,)
    often: NDArray[np.int32]  # (postings,)

    @classmethod
    def load(cls, chunk: Path) -> _Counts:
        return cls(*(np.load(chunk / f"{name}.npy") for name in cls._fields))


class _Weigher:
    """Lucene's variant of BM25, rounded where bm25s rounds."""

    def __init__(
        self, settings: Bm25Settings, texts_with: Ints, passages: int, mean_length: float
    ) -> None:
        self._k1, self._b, self._mean = settings.k1, settings.b, mean_length
        values, back = np.unique(texts_with, return_inverse=True)
        rarity = [math.log(1 + (passages - n + 0.5) / (n + 0.5)) for n in values.tolist()]
        self._rarity = np.array(rarity, np.float32)[back]  # (terms,)

    def __call__(self, terms: Ints, counts: _Counts) -> NDArray[np.floating]:
        """The score of each posting; `terms` are theirs."""
        length = self._k1 * ((1 - self._b) + self._b * counts.lengths / self._mean)  # (N,)
        often = counts.often.astype(np.float32)
        return self._rarity[terms] * (often / (length[counts.text] + often))  # (postings,)


def _without(terms: dict[str, int], stop_words: Sequence[str]) -> tuple[Ints, list[str]]:
    """New numbers without the stop words, which get -1, and the names in their order."""
    stopped = frozenset(stop_words)
    kept = np.array([name not in stopped for name in terms], bool)
    return np.where(kept, np.cumsum(kept) - 1, -1), [n for n in terms if n not in stopped]


def _numbered(chunks: Sequence[Path], terms: _Numbering) -> Iterator[tuple[Path, Ints]]:
    """Each chunk, with the index's number of each of its terms."""
    for chunk in chunks:
        names = msgspec.json.decode((chunk / "terms.json").read_bytes(), type=list[str])
        yield chunk, np.fromiter(map(terms.__getitem__, names), np.int64, len(names))


def _places(heads: Ints, terms: Ints, counts: Ints) -> Ints:
    """Where each posting goes: behind what its term has already."""
    before = np.cumsum(counts) - counts  # (terms,)
    places: Ints = np.repeat(heads[terms] - before, counts) + np.arange(counts.sum())
    return places  # (postings,)


def _grown(array: Ints, size: int) -> Ints:
    return np.concatenate([array, np.zeros(size - len(array), np.int64)])
