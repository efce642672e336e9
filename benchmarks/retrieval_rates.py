"""Queries a second of each kind of index, and what indexing a large corpus takes.

    python benchmarks/retrieval_rates.py --json retrieval.json

Synthetic text: words drawn by Zipf's law, 100 a passage and 8 a query; 3 hits a query; one
thread. For dense indexes the search alone is measured: vectors are drawn at random in place of an
encoder, whose own rate comes on top.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and faiss start their threads

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import bm25s
import faiss
import numpy as np

from agentgym_servers.host.bench import machine
from agentgym_servers.worlds.search.retrieval.bm25_build import Bm25Maker
from agentgym_servers.worlds.search.retrieval.build import IndexMaker, build_index
from agentgym_servers.worlds.search.retrieval.dense import DenseMaker, DenseRanker
from agentgym_servers.worlds.search.retrieval.manifest import DenseSettings, Graph, read_manifest
from agentgym_servers.worlds.search.retrieval.retriever import IndexRetriever

VOCABULARY = 300_000
DIMENSION = 384
LATENT = 32
HITS = 3
BATCH = 256
FAISS_BOUND = 128_000
"""Above which FAISS 1.15 multiplies matrices, if it is left alone."""


class RandomEncoder:
    """Vectors drawn by the text's checksum, in a subspace; stands where an encoder would."""

    versions: dict[str, str] = {}  # noqa: RUF012

    def __init__(self) -> None:
        basis = np.random.default_rng(0).standard_normal((LATENT, DIMENSION))
        self._basis = basis.astype(np.float32)

    def settings(self, query_prefix, passage_prefix, graph) -> DenseSettings:
        """What the index records."""
        return DenseSettings(
            encoder="random", encoder_sha256="", dimension=DIMENSION, max_tokens=0,
            query_prefix="", passage_prefix="", normalized=True, graph=graph,
        )  # fmt: skip

    def check(self, settings: DenseSettings) -> None:
        """There are no weights."""

    def encode(self, texts: Sequence[str], prefix: str, *, normalized: bool) -> np.ndarray:
        """A vector for each text."""
        seeds = (zlib.crc32(text.encode()) for text in texts)
        latent = [np.random.default_rng(seed).standard_normal(LATENT) for seed in seeds]
        vectors = np.array(latent, np.float32) @ self._basis  # (N, DIMENSION)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class PreparedEncoder(RandomEncoder):
    """Gives vectors that were drawn before, so that a search is timed without them."""

    def __init__(self, queries: Sequence[str]) -> None:
        super().__init__()
        vectors = super().encode(queries, "", normalized=True)
        self._vectors = dict(zip(queries, vectors, strict=True))

    def encode(self, texts: Sequence[str], prefix: str, *, normalized: bool) -> np.ndarray:
        """The prepared vector of each text."""
        return np.stack([self._vectors[text] for text in texts])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--queries", type=int, default=4096)
    parser.add_argument("--large", type=int, default=1_000_000, help="corpus to index; 0: none")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in args.passages:
            corpus = write_corpus(folder / f"{count}.jsonl", count)
            for backend in ("bm25", "flat", "hnsw"):
                rows += measure(folder / f"{backend}{count}", corpus, backend, args.queries)
            rows[-1]["recall"] = recall(folder / f"hnsw{count}", folder / f"flat{count}")
        large = index_large(folder, args.large) if args.large else None
    show(rows, large)
    if args.json is not None:
        report = {"machine": machine(), "rows": rows, "large": large}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def write_corpus(path: Path, count: int, seed: int = 0) -> Path:
    """A corpus of Zipf text."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for start in range(0, count, 10_000):
            for number, text in enumerate(texts(rng, min(10_000, count - start), 100), start):
                row = {"id": str(number), "contents": f'"Passage {number}"\n{text}'}
                file.write(json.dumps(row) + "\n")
    return path


def texts(rng: np.random.Generator, count: int, words: int) -> list[str]:
    """Texts of so many words each."""
    ranks = (rng.zipf(1.2, size=(count, words)) - 1) % VOCABULARY
    return [" ".join(f"w{rank}" for rank in row) for row in ranks.tolist()]


def measure(out: Path, corpus: Path, backend: str, queries: int) -> list[dict]:
    """Make an index; a row for each way to search it: time to make, size, and rates."""
    maker: IndexMaker = Bm25Maker()
    if backend != "bm25":
        maker = DenseMaker(RandomEncoder(), graph=Graph() if backend == "hnsw" else None)
    started = time.perf_counter()
    manifest = build_index(corpus, out, maker)
    made = {
        "passages": manifest.passages, "index_s": round(time.perf_counter() - started, 1),
        "mib": round(sum(manifest.files.values()) / 2**20, 1),
    }  # fmt: skip
    asked = texts(np.random.default_rng(1), queries, 8)
    rows = []
    for name, search in searches(out, backend, asked):
        few = asked[: 512 if manifest.passages > 50_000 and name != "bm25" else None]
        search(few[:BATCH], HITS)
        single, batch = (round(rate(search, few, size)) for size in (1, BATCH))
        rows.append({"search": name, **made, "single_per_s": single, "batch_per_s": batch})
    return rows


def searches(out: Path, backend: str, asked: list[str]) -> Iterator[tuple[str, Callable]]:
    """The ways to search an index, ours first."""
    if backend == "bm25":
        yield backend, IndexRetriever(out).search
        theirs = bm25s.BM25.load(out, mmap=True)
        yield "bm25, by bm25s", lambda queries, k: theirs.retrieve(
            bm25s.tokenize(queries, return_ids=False, show_progress=False),
            k=k, show_progress=False,
        )  # fmt: skip
        return
    yield backend, DenseRanker(out, read_manifest(out).settings, PreparedEncoder(asked)).rank
    if backend == "flat":
        ours = faiss.cvar.distance_compute_blas_threshold
        faiss.cvar.distance_compute_blas_threshold = FAISS_BOUND
        yield (
            "flat, FAISS's own bound",
            DenseRanker(out, read_manifest(out).settings, PreparedEncoder(asked)).rank,
        )
        faiss.cvar.distance_compute_blas_threshold = ours


def recall(graph: Path, flat: Path) -> float:
    """The share of the nearest passages that a graph finds."""
    asked = texts(np.random.default_rng(2), BATCH, 8)
    found, exact = (
        DenseRanker(out, read_manifest(out).settings, RandomEncoder()).rank(asked, HITS)
        for out in (graph, flat)
    )
    pairs = zip(found, exact, strict=True)
    shared = sum(len(np.intersect1d(f.numbers, e.numbers)) for f, e in pairs)
    return round(shared / (HITS * len(asked)), 3)


def rate(search: Callable, queries: Sequence[str], batch: int) -> float:
    """Queries a second, asked for in batches."""
    started = time.perf_counter()
    for start in range(0, len(queries), batch):
        search(queries[start : start + batch], HITS)
    return len(queries) / (time.perf_counter() - started)


def index_large(folder: Path, count: int) -> dict:
    """Time and peak memory of `agentgym index` on a corpus, in a process of its own."""
    corpus = write_corpus(folder / "large.jsonl", count)
    program = (
        "from contextlib import suppress\n"
        "from agentgym_servers.worlds.search.retrieval.__main__ import main\n"
        "with suppress(SystemExit):\n    main()\n"
        "print(open('/proc/self/status').read())"
    )
    words = ["index", str(corpus), "--out", str(folder / "large")]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds = time.perf_counter() - started
    peak_kb = int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1])
    size = sum(read_manifest(folder / "large").files.values())
    return {
        "passages": count, "corpus_mib": round(corpus.stat().st_size / 2**20),
        "index_mib": round(size / 2**20), "seconds": round(seconds), "peak_mb": peak_kb // 1000,
    }  # fmt: skip


def show(rows: list[dict], large: dict | None) -> None:
    """Print the figures as tables."""
    print(f"{machine()}; one thread, {HITS} hits a query")
    print(
        "| index | passages | made in s | MiB | queries/s, one a call | batches of 256 | recall@3 |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['search']} | {row['passages']:,} | {row['index_s']} | {row['mib']:,} | "
            f"{row['single_per_s']:,} | {row['batch_per_s']:,} | {row.get('recall', '')} |"
        )
    if large is not None:
        print("agentgym index:", ", ".join(f"{name} {value:,}" for name, value in large.items()))


if __name__ == "__main__":
    main()
