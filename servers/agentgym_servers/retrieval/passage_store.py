"""Passages on disk, read through a memory map; knows nothing about how they are found.

`passages.bin` holds id and contents of every passage, one after another, as UTF-8.
`passages.offsets.npy` holds where each id and each contents begins, and the end: 2N + 1 numbers.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from agentgym_servers.retrieval.arrays import mapped, new_map
from agentgym_servers.retrieval.passages import Passage

TEXT_FILE = "passages.bin"
OFFSETS_FILE = "passages.offsets.npy"


class PassageStore:
    """The passages of a folder by number; safe to read from several threads."""

    def __init__(self, folder: Path) -> None:
        self._offsets = mapped(folder / OFFSETS_FILE)
        with (folder / TEXT_FILE).open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) // 2

    def __getitem__(self, number: int) -> Passage:
        start, middle, end = self._offsets[2 * number : 2 * number + 3].tolist()
        return Passage(self._text[start:middle].decode(), self._text[middle:end].decode())


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
