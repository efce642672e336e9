"""Stored tokens of a run's episodes; readable without a tokenizer.

```
RUN/tokens/NAME.jsonl       one line per episode of trajectories/NAME.jsonl, append-only
RUN/tokens/pieces.json.gz   the text of every token id, as a list
```
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from agentgym_env.errors import ConfigError
from agentgym_env.trajectory import Tokens

PIECES = "pieces.json.gz"
_MAX_BYTES = 2**28
"""Maximum size of an unpacked episode, so that a damaged line cannot exhaust the memory."""
_TYPES = {
    "prompt_ids": "<u4",
    "completion_ids": "<u4",
    "loss_mask": "u1",
    "logprobs": "<f4",
    "versions": "<i4",
    "turn_ends": "<u4",
}


class StoredTokens(Struct, frozen=True, omit_defaults=True):
    """The advantages of an episode, and its tokens if they are stored."""

    episode: int
    """The byte offset of the episode's line in `trajectories/NAME.jsonl`."""
    turn_advantages: list[float]
    """(K,) mean advantage of the tokens of each sampled turn."""
    packed: bytes = b""
    """All rows of tokens with their advantages; empty if the tokens are not stored."""


def pack_tokens(rows: Sequence[Tokens], advantages: Sequence[float]) -> bytes:
    """Compress rows of tokens and the advantages of their completions, row after row.

    Log-probabilities and advantages keep the precision of 32 bits. In a run on TextCraft, where one
    token in eight is sampled, a token takes about 3 bytes in the file.
    """
    values = {
        "rows": [{n: _bytes(getattr(row, n), kind) for n, kind in _TYPES.items()} for row in rows],
        "advantages": _bytes(advantages, "<f4"),
    }
    return zlib.compress(msgspec.msgpack.encode(values), 6)


def unpack_tokens(packed: bytes) -> tuple[list[Tokens], list[float]]:
    """The arguments of `pack_tokens`; raises `ConfigError` for bytes that it did not return."""
    try:
        values = msgspec.msgpack.decode(zlib.decompressobj().decompress(packed, _MAX_BYTES))
        rows = [
            Tokens(**{name: _list(row[name], kind) for name, kind in _TYPES.items()})
            for row in values["rows"]
        ]
        return rows, _list(values["advantages"], "<f4")
    except (zlib.error, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"these stored tokens cannot be read: {error}") from error


def write_pieces(folder: Path, pieces: Sequence[str]) -> None:
    """Write the text of every token id, atomically."""
    folder.mkdir(exist_ok=True)
    partial = folder / f"{PIECES}.partial"
    text = json.dumps(list(pieces), ensure_ascii=True)
    partial.write_bytes(gzip.compress(text.encode("ascii"), mtime=0))
    partial.replace(folder / PIECES)


def read_pieces(folder: Path) -> list[str]:
    """The text of every token id; empty if it is not stored or cannot be read."""
    path = folder / PIECES
    if not path.is_file() or path.is_symlink():
        return []
    try:
        with gzip.open(path) as file:
            found = json.loads(file.read(_MAX_BYTES))
    except (OSError, EOFError, ValueError, RecursionError, zlib.error):
        return []
    return [str(piece) for piece in found] if isinstance(found, list) else []


def _bytes(values: Sequence[float], kind: str) -> bytes:
    return np.asarray(values, dtype=kind).tobytes()


def _list(data: bytes, kind: str) -> list[Any]:
    found: list[Any] = np.frombuffer(data, dtype=kind).tolist()
    return found
