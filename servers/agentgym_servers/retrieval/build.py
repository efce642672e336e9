"""Makes an index of a corpus, chunk by chunk, so that a build that was killed can go on.

Each finished chunk is a folder that got its name in one step. The index's files are made from
the chunks and moved to their places, and `index.json` comes last: where it is, the index is whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_servers.retrieval.arrays import mapped
from agentgym_servers.retrieval.corpus import Chunk, Mark, fingerprint, read_chunks
from agentgym_servers.retrieval.id_check import LINES_FILE, refuse_twins, write_ids
from agentgym_servers.retrieval.manifest import (
    MANIFEST_FILE,
    WORK_FOLDER,
    Backend,
    Bm25Settings,
    DenseSettings,
    Manifest,
    decode_manifest,
    read_manifest,
    write_manifest,
)
from agentgym_servers.retrieval.passage_store import join_passages, write_passages

PLAN_FILE: Final = "plan.json"
_END_FILE: Final = "end.json"

Stage = Literal["check", "read", "write"]
Told = Callable[[Stage, int, int], None]
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
        self, chunks: Sequence[Path], folder: Path, told: Callable[[int, int], None]
    ) -> None:
        """Make the index's files of all chunks."""
        ...


def build_index(
    corpus: Path, out: Path, maker: IndexMaker, told: Told = lambda *_: None
) -> Manifest:
    """Make the index, or finish one that was begun, or leave one that is there as it is.

    However often it was stopped, its files are the same. Raises `BadRequest` where the corpus
    is bad, or where `out` holds an index of another corpus or of other settings.
    """
    source = fingerprint(corpus, lambda done, of: told("check", done, of))
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
            chunks = _write_chunks(corpus, work, maker, told)
            refuse_twins(corpus, chunks)
            manifest = _finish(out, plan, chunks, maker, told)
    except OSError as error:
        raise BadRequest(
            f"the index {out} cannot be written: {error}; see to it that there is room and that "
            "no other build is at work there, and run the same again: it goes on from where it was"
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
    raise BadRequest(f"{folder} holds another index: {reason}; delete it, or choose another --out")


def _write_chunks(corpus: Path, work: Path, maker: IndexMaker, told: Told) -> list[Path]:
    """The folders of all chunks; those that are there already are not made again."""
    size = corpus.stat().st_size
    chunks: list[Path] = []
    while (chunk := work / f"{len(chunks):06d}").is_dir():
        chunks.append(chunk)
    start = Mark()
    if chunks:
        start = msgspec.json.decode((chunks[-1] / _END_FILE).read_bytes(), type=Mark)
    told("read", 0, size)
    for read in read_chunks(
        corpus, maker.chunk_passages, start, lambda done: told("read", done, size)
    ):
        chunks.append(work / f"{len(chunks):06d}")
        _write_chunk(chunks[-1], read, maker)
    if not chunks:
        raise BadRequest(f"{corpus} holds no passages")
    return chunks


def _write_chunk(folder: Path, chunk: Chunk, maker: IndexMaker) -> None:
    part = Path(tempfile.mkdtemp(prefix="part-", dir=folder.parent))
    write_passages(part, chunk.passages)
    write_ids(part, chunk.passages, chunk.lines)
    maker.write_chunk(part, [passage.contents for passage in chunk.passages])
    (part / _END_FILE).write_bytes(msgspec.json.encode(chunk.end))
    os.rename(part, folder)


def _finish(
    out: Path, plan: Manifest, chunks: Sequence[Path], maker: IndexMaker, told: Told
) -> Manifest:
    made = Path(tempfile.mkdtemp(prefix="part-", dir=out / WORK_FOLDER))
    join_passages(chunks, made)
    maker.write_index(chunks, made, lambda done, of: told("write", done, of))
    files = {path.name: path.stat().st_size for path in sorted(made.iterdir())}
    for name in files:
        os.replace(made / name, out / name)
    count = sum(len(mapped(chunk / LINES_FILE)) for chunk in chunks)
    manifest = msgspec.structs.replace(plan, passages=count, files=files)
    write_manifest(out / MANIFEST_FILE, manifest)
    return manifest
