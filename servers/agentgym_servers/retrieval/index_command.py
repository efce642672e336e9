"""`agentgym index`: makes an index of a corpus, with a progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from agentgym_env.errors import BadRequest
from agentgym_servers.retrieval.build import IndexMaker, Stage, Told, build_index
from agentgym_servers.retrieval.manifest import Graph

_STAGES: dict[Stage, str] = {
    "check": "fingerprint of the corpus",
    "read": "passages",
    "write": "index",
}


class BackendName(StrEnum):
    """The kinds of index."""

    BM25 = "bm25"
    FLAT = "flat"
    HNSW = "hnsw"


def index(
    corpus: Annotated[
        Path, typer.Argument(help="JSONL with `id` and `contents` in each line; .gz too.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the index.")],
    backend: Annotated[BackendName, typer.Option(help="The kind of index.")] = BackendName.BM25,
    encoder: Annotated[
        str | None,
        typer.Option(help="Of a dense index: a sentence-transformers model's name or folder."),
    ] = None,
    query_prefix: Annotated[
        str | None, typer.Option(help="Put before each query. Default: the encoder's own.")
    ] = None,
    passage_prefix: Annotated[
        str | None, typer.Option(help="Put before each passage. Default: the encoder's own.")
    ] = None,
    k1: Annotated[
        float, typer.Option(help="BM25: how soon a word that is repeated is enough.")
    ] = 1.5,
    b: Annotated[float, typer.Option(help="BM25: how much the length of a passage counts.")] = 0.75,
    chunk_passages: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Make an index of a corpus, or go on with one that was stopped."""
    more: dict[str, Any] = {} if chunk_passages is None else {"chunk_passages": chunk_passages}
    dense = {"query_prefix": query_prefix, "passage_prefix": passage_prefix}
    if backend is not BackendName.BM25:
        maker = _dense_maker(backend, encoder, **dense, **more)
    elif encoder is None and dense == dict.fromkeys(dense):
        maker = _bm25_maker(k1=k1, b=b, **more)
    else:
        raise BadRequest("an encoder and prefixes are for --backend flat or hnsw")
    with _progress() as told:
        manifest = build_index(corpus, out, maker, told)
    size = sum(manifest.files.values())
    typer.echo(f"{out}: {manifest.passages:,} passages, {backend.value}, {size / 2**20:,.1f} MiB")


def _bm25_maker(**options: Any) -> IndexMaker:
    maker: IndexMaker = import_module("agentgym_servers.retrieval.bm25_build").Bm25Maker(**options)
    return maker


def _dense_maker(backend: BackendName, encoder: str | None, **options: Any) -> IndexMaker:
    if encoder is None:
        raise BadRequest(
            f"--backend {backend.value} needs an --encoder, such as intfloat/e5-base-v2"
        )
    # Each needs an extra of its own.
    dense = import_module("agentgym_servers.retrieval.dense")
    dense_encoder = import_module("agentgym_servers.retrieval.dense_encoder")
    graph = Graph() if backend is BackendName.HNSW else None
    maker: IndexMaker = dense.DenseMaker(dense_encoder.Encoder(encoder), graph=graph, **options)
    return maker


@contextmanager
def _progress() -> Iterator[Told]:
    """A bar for each stage, on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        tasks = {stage: progress.add_task(name, total=None) for stage, name in _STAGES.items()}
        yield lambda stage, done, of: progress.update(tasks[stage], completed=done, total=of)
