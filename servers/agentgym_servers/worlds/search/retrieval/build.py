"""`agentgym index`: builds an index chunk by chunk; an interrupted build resumes.

Each finished chunk is a folder that got its name in one step. The index's files are made from
the chunks and moved to their places, and `index.json` comes last: where it is, the index is whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from agentgym_env.cli.options import check_folder_name, choice_option
from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.retrieval.corpus import Chunk, Mark, fingerprint, read_chunks
from agentgym_servers.worlds.search.retrieval.manifest import (
    MANIFEST_FILE,
    WORK_FOLDER,
    Backend,
    Bm25Settings,
    DenseSettings,
    Graph,
    Manifest,
    decode_manifest,
    read_manifest,
    write_manifest,
)
from agentgym_servers.worlds.search.retrieval.passages import (
    LINES_FILE,
    join_passages,
    mapped,
    refuse_twins,
    write_ids,
    write_passages,
)

BACKENDS: Final = ("bm25", "flat", "hnsw")

PLAN_FILE: Final = "plan.json"

_END_FILE: Final = "end.json"

Stage = Literal["check", "read", "write"]

OnProgress = Callable[[Stage, int, int], None]
"""Hears how much of a stage is done, and of how much."""


class IndexMaker(Protocol):
    """Makes the files of one kind of index; knows nothing about corpora and resuming."""

    backend: Backend
    settings: Bm25Settings | DenseSettings
    versions: dict[str, str]
    chunk_passages: int

    def write_chunk(self, folder: Path, texts: Sequence[str]) -> None:
        """Do the work that a chunk's texts need by themselves."""
        ...

    def write_index(
        self, chunks: Sequence[Path], folder: Path, progress: Callable[[int, int], None]
    ) -> None:
        """Make the index's files of all chunks."""
        ...


def build_index(
    corpus: Path, out: Path, maker: IndexMaker, progress: OnProgress = lambda *_: None
) -> Manifest:
    """Make the index, or finish one that was begun, or leave one that is there as it is.

    However often it was stopped, its files are the same. Raises `BadRequest` where the corpus
    is bad, or where `out` contains an index of another corpus or of other settings.
    """
    source = fingerprint(corpus, lambda done, of: progress("check", done, of))
    plan = Manifest(
        backend=maker.backend, corpus=source, settings=maker.settings, versions=maker.versions,
        chunk_passages=maker.chunk_passages,
    )  # fmt: skip
    work = out / WORK_FOLDER
    try:
        if (out / MANIFEST_FILE).exists():
            manifest = _finished(out, plan)
        else:
            _begin(work, plan)
            chunks = _write_chunks(corpus, work, maker, progress)
            refuse_twins(corpus, chunks)
            manifest = _finish(out, plan, chunks, maker, progress)
    except OSError as error:
        raise BadRequest(
            f"the index {out} cannot be written: {error}; check that there is space and that "
            "no other build uses it, then run the same command again: it resumes"
        ) from error
    shutil.rmtree(work, ignore_errors=True)
    return manifest


def _finished(out: Path, plan: Manifest) -> Manifest:
    manifest = read_manifest(out)
    _refuse_another(msgspec.structs.replace(manifest, passages=0, files={}), plan, out)
    return manifest


def _begin(work: Path, plan: Manifest) -> None:
    """Make the folder of the work, or see that what is in it belongs to the same work."""
    work.mkdir(parents=True, exist_ok=True)
    if (work / PLAN_FILE).exists():
        _refuse_another(decode_manifest(work / PLAN_FILE), plan, work)
    else:
        write_manifest(work / PLAN_FILE, plan)


def _refuse_another(there: Manifest, plan: Manifest, folder: Path) -> None:
    if there.corpus.sha256 != plan.corpus.sha256:
        reason = f"it was made of {there.corpus.name} as it was then: the corpus has changed since"
    elif there != plan:
        names = [n for n in plan.__struct_fields__ if getattr(there, n) != getattr(plan, n)]
        reason = f"it was made with another {' and '.join(names)}"
    else:
        return
    raise BadRequest(
        f"{folder} contains another index: {reason}; delete it, or choose another --out"
    )


def _write_chunks(corpus: Path, work: Path, maker: IndexMaker, progress: OnProgress) -> list[Path]:
    """The folders of all chunks; those that are there already are not made again."""
    size = corpus.stat().st_size
    chunks: list[Path] = []
    while (chunk := work / f"{len(chunks):06d}").is_dir():
        chunks.append(chunk)
    start = Mark()
    if chunks:
        start = msgspec.json.decode((chunks[-1] / _END_FILE).read_bytes(), type=Mark)
    progress("read", 0, size)
    for read in read_chunks(
        corpus, maker.chunk_passages, start, lambda done: progress("read", done, size)
    ):
        chunks.append(work / f"{len(chunks):06d}")
        _write_chunk(chunks[-1], read, maker)
    if not chunks:
        raise BadRequest(f"{corpus} contains no passages")
    return chunks


def _write_chunk(folder: Path, chunk: Chunk, maker: IndexMaker) -> None:
    part = Path(tempfile.mkdtemp(prefix="part-", dir=folder.parent))
    write_passages(part, chunk.passages)
    write_ids(part, chunk.passages, chunk.lines)
    maker.write_chunk(part, [passage.contents for passage in chunk.passages])
    (part / _END_FILE).write_bytes(msgspec.json.encode(chunk.end))
    os.rename(part, folder)


def _finish(
    out: Path, plan: Manifest, chunks: Sequence[Path], maker: IndexMaker, progress: OnProgress
) -> Manifest:
    made = Path(tempfile.mkdtemp(prefix="part-", dir=out / WORK_FOLDER))
    join_passages(chunks, made)
    maker.write_index(chunks, made, lambda done, of: progress("write", done, of))
    files = {path.name: path.stat().st_size for path in sorted(made.iterdir())}
    for name in files:
        os.replace(made / name, out / name)
    count = sum(len(mapped(chunk / LINES_FILE)) for chunk in chunks)
    manifest = msgspec.structs.replace(plan, passages=count, files=files)
    write_manifest(out / MANIFEST_FILE, manifest)
    return manifest


_STAGES: dict[Stage, str] = {
    "check": "fingerprint of the corpus",
    "read": "passages",
    "write": "index",
}


def index(
    corpus: Annotated[
        Path,
        typer.Argument(help="JSON lines with `id` and `contents`; may be compressed (.gz)."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the index to.")],
    backend: Annotated[
        str, choice_option(BACKENDS, "Type of index; flat and hnsw use an encoder")
    ] = "bm25",
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Encoder of flat and hnsw: name or folder of a sentence-transformers model."
        ),
    ] = None,
    query_prefix: Annotated[
        str | None, typer.Option(help="Text before each query. Default: set by the encoder.")
    ] = None,
    passage_prefix: Annotated[
        str | None, typer.Option(help="Text before each passage. Default: set by the encoder.")
    ] = None,
    k1: Annotated[float, typer.Option(help="BM25: how much repeated words count.")] = 1.5,
    b: Annotated[
        float, typer.Option(help="BM25: how much the passage length counts, from 0 to 1.")
    ] = 0.75,
    chunk_passages: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Build a search index of a corpus.

    An interrupted build resumes where it stopped.
    """
    check_folder_name("--out", out)
    more: dict[str, Any] = {} if chunk_passages is None else {"chunk_passages": chunk_passages}
    dense = {"query_prefix": query_prefix, "passage_prefix": passage_prefix}
    if backend != "bm25":
        maker = _dense_maker(backend, encoder, **dense, **more)
    elif encoder is None and dense == dict.fromkeys(dense):
        maker = _bm25_maker(k1=k1, b=b, **more)
    else:
        raise BadRequest("--encoder and the prefixes are only for --backend flat or hnsw")
    with _progress() as progress:
        manifest = build_index(corpus, out, maker, progress)
    size = sum(manifest.files.values())
    typer.echo(f"{out}: {manifest.passages:,} passages, {backend}, {size / 2**20:,.1f} MiB")


def _bm25_maker(**options: Any) -> IndexMaker:
    maker: IndexMaker = import_module(
        "agentgym_servers.worlds.search.retrieval.bm25_build"
    ).Bm25Maker(**options)
    return maker


def _dense_maker(backend: str, encoder: str | None, **options: Any) -> IndexMaker:
    if encoder is None:
        raise BadRequest(f"--backend {backend} needs an --encoder, such as intfloat/e5-base-v2")
    # Each needs its own extra.
    dense = import_module("agentgym_servers.worlds.search.retrieval.dense")
    dense_encoder = import_module("agentgym_servers.worlds.search.retrieval.dense_encoder")
    graph = Graph() if backend == "hnsw" else None
    maker: IndexMaker = dense.DenseMaker(dense_encoder.Encoder(encoder), graph=graph, **options)
    return maker


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """A bar for each stage, on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        tasks = {stage: progress.add_task(name, total=None) for stage, name in _STAGES.items()}
        yield lambda stage, done, of: progress.update(tasks[stage], completed=done, total=of)
