"""Finds passages of one id in a corpus of any size: eight bytes each are held in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from agentgym_env.errors import BadRequest
from agentgym_servers.retrieval.arrays import mapped
from agentgym_servers.retrieval.passage_store import PassageStore
from agentgym_servers.retrieval.passages import Passage

LINES_FILE: Final = "lines.npy"
_DIGESTS_FILE: Final = "digests.npy"


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
                "give every passage its own"
            )
        seen[passage_id] = line
