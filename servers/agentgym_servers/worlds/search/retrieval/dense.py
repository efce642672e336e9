"""Dense retrieval with FAISS: every vector compared (Flat), or a graph of neighbours (HNSW)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from agentgym_env.errors import MissingExtra
from agentgym_servers.worlds.search.retrieval.manifest import Backend, DenseSettings, Graph
from agentgym_servers.worlds.search.retrieval.passages import damaged, mapped, new_map
from agentgym_servers.worlds.search.retrieval.ranking import Ranking, ordered

try:
    import faiss
except ModuleNotFoundError as error:
    raise MissingExtra("a dense index needs faiss: pip install 'agentgym-sdk[search]'") from error

VECTORS_FILE: Final = "vectors.npy"
GRAPH_FILE: Final = "hnsw.faiss"
_SPARE = 16
# Of the product of the two lengths; single precision rounds a sum by less, as a rule.
_ROUNDING = 1e-5
# FAISS multiplies matrices, ten times quicker for a batch, only above its own much higher bound.
faiss.cvar.distance_compute_blas_threshold = 1_000

Vectors = NDArray[np.float32]


class TextEncoder(Protocol):
    """Turns texts into vectors: `dense_encoder.Encoder`."""

    versions: dict[str, str]

    def settings(
        self, query_prefix: str | None, passage_prefix: str | None, graph: Graph | None
    ) -> DenseSettings:
        """What an index of this encoder's vectors records; None takes the encoder's own prefix."""
        ...

    def check(self, settings: DenseSettings) -> None:
        """Raise `BadRequest` unless an index was made with this encoder."""
        ...

    def encode(self, texts: Sequence[str], prefix: str, *, normalized: bool) -> Vectors:
        """A vector for each text, behind `prefix`."""
        ...


class DenseMaker:
    """Makes the files of a Flat index, or of an HNSW one where a graph is requested."""

    def __init__(
        self,
        encoder: TextEncoder,
        *,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        graph: Graph | None = None,
        chunk_passages: int = 1_000,
    ) -> None:
        self.backend: Backend = "flat" if graph is None else "hnsw"
        self.settings = encoder.settings(query_prefix, passage_prefix, graph)
        own = {"faiss": faiss.__version__, "numpy": np.__version__}
        self.versions = own | encoder.versions
        self.chunk_passages = chunk_passages
        self._encoder = encoder

    def write_chunk(self, folder: Path, texts: Sequence[str]) -> None:
        """Encode the texts."""
        prefix, normalized = self.settings.passage_prefix, self.settings.normalized
        np.save(folder / VECTORS_FILE, self._encoder.encode(texts, prefix, normalized=normalized))

    def write_index(
        self, chunks: Sequence[Path], folder: Path, progress: Callable[[int, int], None]
    ) -> None:
        """Put the vectors of all chunks into one file, or into one graph."""
        if self.settings.graph is None:
            _join_vectors(chunks, folder / VECTORS_FILE, progress)
        else:
            index = _grow_graph(self.settings.dimension, self.settings.graph, chunks, progress)
            faiss.write_index(index, str(folder / GRAPH_FILE))


class FlatSearch:
    """Compares a query with every vector; they stay on disk, under a memory map."""

    def __init__(self, folder: Path) -> None:
        self._vectors = mapped(folder / VECTORS_FILE)

    def nearest(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Scores and numbers of the nearest vectors of each query, and of some after them.

        FAISS keeps any of several equal scores, and rounds a score by the vector's place: wider
        searches bring all that may equal the k-th, and each score is taken again, place or no.
        """
        size = len(self._vectors)
        wide = k
        while True:
            wide = min(wide + _SPARE, size)
            scores, numbers = faiss.knn(queries, self._vectors, wide, faiss.METRIC_INNER_PRODUCT)
            pairs = zip(queries, numbers, strict=True)
            again, slack = zip(*(self._again(query, row) for query, row in pairs), strict=True)
            if wide == size or (scores[:, k - 1] - scores[:, -1] > slack).all():
                return np.stack(again), numbers  # (Q, wide), (Q, wide)
            wide *= 4

    def _again(self, query: Vectors, numbers: NDArray[np.int64]) -> tuple[Vectors, float]:
        """Scores that no neighbour changes, and how far apart rounding may have put equal ones."""
        found = self._vectors[numbers]  # (wide, D)
        scores = np.einsum("d,wd->w", query, found, dtype=np.float64)
        longest = float(np.linalg.norm(query) * np.linalg.norm(found, axis=1).max())
        return scores.astype(np.float32), _ROUNDING * longest


class GraphSearch:
    """Walks a graph of neighbours, under a memory map; may miss a vector."""

    def __init__(self, folder: Path, graph: Graph) -> None:
        try:
            self._index = faiss.read_index(str(folder / GRAPH_FILE), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise damaged(folder / GRAPH_FILE, str(error).splitlines()[0]) from error
        self._ef_search = graph.ef_search

    def nearest(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Scores and numbers of the nearest vectors of each query, as far as they are found."""
        width = faiss.SearchParametersHNSW(  # type: ignore[attr-defined]  # its stubs lack it
            efSearch=max(self._ef_search, k)
        )
        scores, numbers = self._index.search(queries, k, params=width)
        return scores, numbers  # (Q, k), (Q, k); -1 where there are fewer


class DenseRanker:
    """Encodes queries and ranks the passages whose vectors are nearest."""

    def __init__(self, folder: Path, settings: DenseSettings, encoder: TextEncoder) -> None:
        encoder.check(settings)
        self._encoder = encoder
        self._settings = settings
        self._search = (
            FlatSearch(folder) if settings.graph is None else GraphSearch(folder, settings.graph)
        )

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """The `k` nearest passages of each query, as far as they are found."""
        prefix, normalized = self._settings.query_prefix, self._settings.normalized
        vectors = self._encoder.encode(queries, prefix, normalized=normalized)  # (Q, D)
        scores, numbers = self._search.nearest(vectors, k)
        return [
            ordered(ns[ns >= 0], ss[ns >= 0], k) for ns, ss in zip(numbers, scores, strict=True)
        ]


def _join_vectors(chunks: Sequence[Path], path: Path, progress: Callable[[int, int], None]) -> None:
    shapes = [mapped(chunk / VECTORS_FILE).shape for chunk in chunks]
    joined = new_map(path, np.float32, sum(rows for rows, _ in shapes), shapes[0][1])
    row = 0
    for done, chunk in enumerate(chunks):
        vectors = np.load(chunk / VECTORS_FILE)
        joined[row : row + len(vectors)] = vectors
        row += len(vectors)
        progress(done + 1, len(chunks))


def _grow_graph(
    dimension: int, graph: Graph, chunks: Sequence[Path], progress: Callable[[int, int], None]
) -> Any:
    index = faiss.IndexHNSWFlat(dimension, graph.neighbours, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = graph.ef_construction
    threads = faiss.omp_get_max_threads()
    # Threads that insert side by side would give another graph each time.
    faiss.omp_set_num_threads(1)
    try:
        for done, chunk in enumerate(chunks):
            index.add(np.load(chunk / VECTORS_FILE))
            progress(done + 1, len(chunks))
    finally:
        faiss.omp_set_num_threads(threads)
    return index
