"""Passages, what finds them, and their store in a folder of an index."""

from __future__ import annotations

import hashlib
import mmap
import shutil
import tokenize
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentgym_env.errors import AgentGymError, BadRequest

TEXT_FILE = "passages.bin"

OFFSETS_FILE = "passages.offsets.npy"

LINES_FILE: Final = "lines.npy"

_DIGESTS_FILE: Final = "digests.npy"


class Passage(msgspec.Struct, frozen=True):
    """A passage of Search-R1's form: `contents` is a quoted title, a newline and the text."""

    id: str
    contents: str

    @property
    def title(self) -> str:
        """The first line, without its quotation marks."""
        return self.contents.partition("\n")[0].strip().strip('"')

    @property
    def text(self) -> str:
        """Everything after the first line."""
        return self.contents.partition("\n")[2]


class Hit(msgspec.Struct, frozen=True):
    """A passage that was found, and how well it fits; scores compare within one answer only."""

    passage: Passage
    score: float


class Retriever(Protocol):
    """Finds the passages nearest to each query; knows nothing about questions and rewards."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, best first, in the queries' order.

        Raises `RetrieverFailed` when there is no answer.
        """
        ...


def mapped(path: Path) -> NDArray[Any]:
    """A file's array, read where it is looked at."""
    # As a plain array: numpy's own class for maps makes every slice slow.
    return np.asarray(loaded(path, mmap_mode="r"))


def loaded(path: Path, mmap_mode: Literal["r"] | None = None) -> NDArray[Any]:
    """A file's array; raises `BadRequest` where it is none."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode=mmap_mode)
    except (OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise damaged(path, str(error)) from error
    return array


def damaged(path: Path, why: str) -> BadRequest:
    """The error for a file of an index that cannot be what was written."""
    return BadRequest(
        f"{path} is damaged: {why}; copy the index again, or make it again in another folder"
    )


def new_map(path: Path, dtype: type[np.generic], *shape: int) -> NDArray[Any]:
    """A new file's array; what is written to it goes to the file."""
    made = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)  # type: ignore[no-untyped-call]
    return np.asarray(made)


class RetrieverFailed(AgentGymError):
    """A search has no answer: the retriever is gone, hangs, or answers nonsense."""


class PassageStore:
    """The passages of a folder by number; safe to read from several threads."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TEXT_FILE
        self._offsets = mapped(folder / OFFSETS_FILE)
        with self._path.open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._offsets[-1] != len(self._text):
            raise damaged(
                folder / OFFSETS_FILE,
                f"its texts end at byte {self._offsets[-1]}, and {TEXT_FILE} at {len(self._text)}",
            )

    def __len__(self) -> int:
        return len(self._offsets) // 2

    def __getitem__(self, number: int) -> Passage:
        start, middle, end = self._offsets[2 * number : 2 * number + 3].tolist()
        try:
            return Passage(self._text[start:middle].decode(), self._text[middle:end].decode())
        except UnicodeDecodeError as error:
            raise damaged(self._path, f"passage {number} is not UTF-8 ({error})") from error


def write_passages(folder: Path, passages: Sequence[Passage]) -> None:
    """Put passages into an empty folder."""
    pieces = [text.encode() for passage in passages for text in (passage.id, passage.contents)]
    (folder / TEXT_FILE).write_bytes(b"".join(pieces))
    offsets = np.fromiter(accumulate(map(len, pieces), initial=0), np.int64)  # (2N + 1,)
    np.save(folder / OFFSETS_FILE, offsets)


def join_passages(parts: Sequence[Path], folder: Path) -> None:
    """Put the passages of several folders, in order, into one that has none."""
    counts = [len(mapped(part / OFFSETS_FILE)) - 1 for part in parts]
    offsets = new_map(folder / OFFSETS_FILE, np.int64, sum(counts) + 1)
    done = 0
    with (folder / TEXT_FILE).open("wb") as text:
        for part, count in zip(parts, counts, strict=True):
            offsets[done : done + count + 1] = np.load(part / OFFSETS_FILE) + text.tell()
            done += count
            with (part / TEXT_FILE).open("rb") as piece:
                shutil.copyfileobj(piece, text)


def write_ids(folder: Path, passages: Sequence[Passage], lines: Sequence[int]) -> None:
    """Put a digest of each id, and the line it is from, into a chunk's folder."""
    digests = b"".join(hashlib.blake2b(p.id.encode(), digest_size=8).digest() for p in passages)
    np.save(folder / _DIGESTS_FILE, np.frombuffer(digests, np.uint64))
    np.save(folder / LINES_FILE, np.array(lines, np.int64))


def refuse_twins(corpus: Path, chunks: Sequence[Path]) -> None:
    """Raise `BadRequest` with both lines where two passages of a corpus share their id."""
    digests = np.concatenate([np.load(chunk / _DIGESTS_FILE) for chunk in chunks])  # (N,)
    ordered = np.sort(digests)
    shared = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    suspects = np.flatnonzero(np.isin(digests, shared))
    ends = np.cumsum([len(mapped(chunk / LINES_FILE)) for chunk in chunks])
    seen: dict[str, int] = {}
    for number in suspects.tolist():
        chunk = int(np.searchsorted(ends, number, side="right"))
        place = number - (int(ends[chunk - 1]) if chunk else 0)
        passage_id = PassageStore(chunks[chunk])[place].id
        line = int(mapped(chunks[chunk] / LINES_FILE)[place])
        if passage_id in seen:
            raise BadRequest(
                f"{corpus}, line {line} has the id {passage_id!r} of line {seen[passage_id]}; "
                "give each passage its own id"
            )
        seen[passage_id] = line
