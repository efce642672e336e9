"""A corpus as a file: reads its passages in chunks, from any place on."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.retrieval.passages import Passage

_BLOCK_BYTES = 2**20


class CorpusFile(msgspec.Struct, frozen=True):
    """Which corpus it was: its file's name, size and SHA-256."""

    name: str
    bytes: int
    sha256: str


class Mark(msgspec.Struct, frozen=True):
    """A place between two lines: bytes of text and lines before it."""

    position: int = 0
    line: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Passages that follow one another, the line of each, and where the next ones begin."""

    passages: list[Passage]
    lines: list[int]
    end: Mark


class _Row(msgspec.Struct):
    """A line, as far as it is read; other fields are allowed."""

    id: str | int
    contents: str


_decode = msgspec.json.Decoder(_Row).decode


def fingerprint(corpus: Path, progress: Callable[[int, int], None]) -> CorpusFile:
    """Read the whole file; `progress` is called with the bytes read and all bytes."""
    digest = hashlib.sha256()
    with _opened(corpus) as file:
        size = corpus.stat().st_size
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            progress(file.tell(), size)
    return CorpusFile(corpus.name, size, digest.hexdigest())


def read_chunks(
    corpus: Path, size: int, start: Mark, progress: Callable[[int], None]
) -> Iterator[Chunk]:
    """Chunks of `size` passages, the last one shorter, from `start` on.

    `progress` is called with the bytes that were read. Raises `BadRequest` with the line's
    number where a line is no passage. Blank lines are passed over.
    """
    with _opened(corpus) as raw:
        text: IO[bytes] = raw
        if corpus.suffix == ".gz":
            text = cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        try:
            text.seek(start.position)
            line = start.line
            while chunk := _read_chunk(corpus, text, size, line):
                line = chunk.end.line
                yield chunk
                progress(raw.tell())
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadRequest(
                f"{corpus} is not a complete gzip file ({error}); download it again"
            ) from error


def _read_chunk(corpus: Path, text: IO[bytes], size: int, line: int) -> Chunk | None:
    passages: list[Passage] = []
    lines: list[int] = []
    while len(passages) < size and (raw := text.readline()):
        line += 1
        if not raw.isspace():
            passages.append(_parse(corpus, line, raw))
            lines.append(line)
    return Chunk(passages, lines, Mark(text.tell(), line)) if passages else None


def _parse(corpus: Path, line: int, raw: bytes) -> Passage:
    try:
        row = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            f"{corpus}, line {line} is not a passage: {error}; "
            'a line looks like {"id": "7", "contents": "\\"Title\\"\\nText"}'
        ) from error
    if row.id == "":
        raise BadRequest(f"{corpus}, line {line} has an empty id; give each passage its own id")
    return Passage(str(row.id), row.contents)


def _opened(corpus: Path) -> IO[bytes]:
    try:
        return corpus.open("rb")
    except OSError as error:
        raise BadRequest(f"cannot read the corpus {corpus}: {error.strerror}") from error
