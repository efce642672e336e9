"""The manifest of an index: what it was made of, how, and the sizes of its files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.retrieval.corpus import CorpusFile

FORMAT: Final = 1

MANIFEST_FILE: Final = "index.json"

WORK_FOLDER: Final = "building"
"""Inside an index that is not finished."""

Backend = Literal["bm25", "flat", "hnsw"]


class Bm25Settings(msgspec.Struct, frozen=True, kw_only=True, tag="bm25", tag_field="kind"):
    """How words are cut and weighed."""

    method: str = "lucene"
    k1: float = 1.5
    b: float = 0.75
    lowercase: bool = True
    token_pattern: str = r"(?u)\b\w\w+\b"
    stop_words: tuple[str, ...] = ()
    stemmer: None = None


class Graph(msgspec.Struct, frozen=True):
    """How a graph of neighbours (HNSW, arXiv:1603.09320) is built and walked."""

    neighbours: int = 32
    ef_construction: int = 200
    ef_search: int = 128


class DenseSettings(msgspec.Struct, frozen=True, kw_only=True, tag="dense", tag_field="kind"):
    """How texts become vectors; their inner product is the score."""

    encoder: str
    """A name on the Hugging Face Hub, or a folder."""
    encoder_sha256: str
    """Of its weights."""
    dimension: int
    max_tokens: int
    query_prefix: str
    passage_prefix: str
    normalized: bool
    """Whether vectors have length 1, as for an encoder whose similarity is the cosine."""
    graph: Graph | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """An index: what it was made of, how, with what, and the sizes of its files in bytes."""

    format: int = FORMAT
    backend: Backend
    corpus: CorpusFile
    settings: Bm25Settings | DenseSettings
    versions: dict[str, str]
    chunk_passages: int
    passages: int = 0
    files: dict[str, int] = {}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a whole index; raises `BadRequest` with the next step for anything less."""
    if not (folder / MANIFEST_FILE).is_file():
        if (folder / WORK_FOLDER).is_dir():
            raise BadRequest(
                f"the index {folder} is incomplete; run the same `agentgym index` command "
                "again, and it resumes"
            )
        raise BadRequest(
            f"there is no index in {folder}; make one with `agentgym index CORPUS.jsonl "
            f"--out {folder}`"
        )
    manifest = decode_manifest(folder / MANIFEST_FILE)
    for name, size in manifest.files.items():
        path = folder / name
        there = path.stat().st_size if path.is_file() else None
        if there != size:
            raise BadRequest(
                f"{path} has {'no' if there is None else there} bytes where {size} belong; "
                "copy the index again, or make it again in another folder"
            )
    return manifest


def decode_manifest(path: Path) -> Manifest:
    """A manifest as it was written; raises `BadRequest` where it is none of this version's."""
    try:
        head = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        written = msgspec.json.decode(head.get("format", b"null"))
        if written == FORMAT:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} is not an index's description: {error}") from error
    raise BadRequest(
        f"{path} is of index format {written}, and this version reads {FORMAT}; "
        "make the index again"
    )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write it whole or not at all."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    part = path.with_suffix(".part")
    part.write_bytes(text + b"\n")
    os.replace(part, path)
