"""Follows the files of running runs and writes what they append to the index."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from agentgym_env.run_store import readable_files
from agentgym_viewer.index import COLUMNS, EpisodeIndex, IndexedEpisode, Int64

_HEAD_BYTES = 4096

_TAIL_BYTES = 256

logger = logging.getLogger(__name__)

BATCH_BYTES = 2_000_000
"""Bytes per transaction; the page's queries wait for at most one."""

_POLL_S = 0.5

_MOST_TEXT = 200_000
"""Maximum indexed characters of an episode."""

_END_OF_TEXT = "\n\ue000\n"
"""Separator of texts, so that a phrase cannot match across two of them."""

_KINDS = ("trajectories", "tokens")

_EPISODES = msgspec.json.Decoder(IndexedEpisode)

_STORED = ("run", "file", "name", "start", "length", *COLUMNS)

_INSERT = (
    f"INSERT OR IGNORE INTO episodes ({', '.join(_STORED)}) "
    f"VALUES ({', '.join('?' * len(_STORED))})"
)


class _TokenLine(Struct):
    episode: Int64


_TOKEN_LINES = msgspec.json.Decoder(_TokenLine)


class Indexer:
    """Follows the files of runs in a separate thread."""

    def __init__(self, index: EpisodeIndex) -> None:
        self._index = index
        self._runs: dict[int, Path] = {}
        self._asked = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="indexer", daemon=True)
        self.caught_up = threading.Event()
        """Set while all files are read."""

    def follow(self, runs: dict[int, Path]) -> None:
        """Follow these runs, given by their ids in the index."""
        self._runs = dict(runs)
        self.caught_up.clear()
        self._asked.set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the current batch."""
        self._ended.set()
        self._asked.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.is_set():
            self._asked.clear()
            try:
                while not self._ended.is_set() and self.read_batches():
                    pass
                if not self._asked.is_set():
                    self.caught_up.set()
            except (OSError, sqlite3.Error) as error:
                # For example, a folder was removed or the disk is full; try again later.
                logger.warning("cannot update the index: %s", error)
            self._asked.wait(_POLL_S)

    def read_batches(self) -> bool:
        """Read one batch of every file that has grown; returns whether there was any."""
        files = [
            (run, kind, path)
            for run, folder in sorted(self._runs.items())
            for kind in _KINDS
            for path in readable_files(folder, kind)[0]
        ]
        grown = any([self._try(self._read_rows, run, kind, path) for run, kind, path in files])
        if grown or not self._index.finds_text:
            return grown
        return any(
            [
                self._try(self._read_words, run, path)
                for run, kind, path in files
                if kind == "trajectories"
            ]
        )

    def _try(self, read: Callable[..., bool], *place: Any) -> bool:
        """Read a file, without keeping the others from being read if that fails."""
        try:
            return read(*place)
        except OSError as error:
            logger.warning("cannot read a file: %s", error)
            return False

    def _read_rows(self, run: int, kind: str, path: Path) -> bool:
        file = self._file(run, kind, path)
        size = path.stat().st_size
        if size <= file["upto"] and size == file["size"]:
            return False
        found = _ParsedLines()
        with self._index.writing() as connection, path.open("rb") as source:
            # Read it inside the transaction: another viewer may have updated it.
            at = connection.execute("SELECT * FROM files WHERE id = ?", (file["id"],)).fetchone()
            upto, lines = at["upto"], at["lines"]
            for begin, line in _whole_lines(source, upto, BATCH_BYTES):
                lines += 1
                upto = begin + len(line)
                if line.strip():
                    found.add(kind, at, lines, begin, line)
            found.write(connection)
            connection.execute(
                "UPDATE files SET upto = ?, lines = ?, size = ?, tail = ? WHERE id = ?",
                (upto, lines, size, _tail_of(source, upto), file["id"]),
            )
        return bool(upto > at["upto"])

    def _read_words(self, run: int, path: Path) -> bool:
        file = self._file(run, "trajectories", path)
        if file["text_upto"] >= file["upto"]:
            return False
        table = f"text_{int(file['id'])}"
        with self._index.writing() as connection, path.open("rb") as source:
            connection.execute(
                f"CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING fts5"
                "(body, content='', tokenize='unicode61 remove_diacritics 2')"
            )
            sql = "SELECT text_upto, upto FROM files WHERE id = ?"
            start, end = connection.execute(sql, (file["id"],)).fetchone()
            ids = dict(
                connection.execute(
                    "SELECT start, id FROM episodes WHERE file = ? AND start >= ? AND start < ?",
                    (file["id"], start, start + BATCH_BYTES),
                ).fetchall()
            )
            upto = start
            for begin, line in _whole_lines(source, start, min(BATCH_BYTES, end - start)):
                upto = begin + len(line)
                if begin in ids:
                    connection.execute(
                        f"INSERT INTO {table} (rowid, body) VALUES (?, ?)",
                        (ids[begin], _words(_EPISODES.decode(line))),
                    )
            sql = "UPDATE files SET text_upto = ? WHERE id = ?"
            connection.execute(sql, (upto, file["id"]))
        return True

    def _file(self, run: int, kind: str, path: Path) -> sqlite3.Row:
        """The index's data of a file; a file that was replaced is read from its beginning."""
        sql = "SELECT * FROM files WHERE run = ? AND kind = ? AND name = ?"
        key = (run, kind, path.stem)
        known = self._index.rows(sql, key)
        if known:
            head, taken = _head_of(path, max(1, known[0]["head_bytes"]))
            whole = path.stat().st_size >= known[0]["upto"] and taken == known[0]["head_bytes"]
            if whole and head == known[0]["head"] and self._continues(path, known[0]):
                return known[0]
            self._index.forget_file(known[0]["id"])
        head, taken = _head_of(path)
        with self._index.writing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO files (run, kind, name, head, head_bytes) "
                "VALUES (?, ?, ?, ?, ?)",
                (*key, head, taken),
            )
        return self._index.rows(sql, key)[0]

    def _continues(self, path: Path, known: sqlite3.Row) -> bool:
        """Whether the lines before `upto` are those that were read; a resumed run repeats steps."""
        with path.open("rb") as file:
            return bool(_tail_of(file, known["upto"]) == known["tail"])


class _ParsedLines:
    """The parsed lines of a batch."""

    def __init__(self) -> None:
        self._episodes: list[tuple[Any, ...]] = []
        self._token_lines: list[tuple[Any, ...]] = []
        self._broken: list[tuple[Any, ...]] = []

    def add(self, kind: str, file: sqlite3.Row, number: int, begin: int, line: bytes) -> None:
        try:
            if kind == "tokens":
                key = (file["run"], file["name"], _TOKEN_LINES.decode(line).episode)
                self._token_lines.append((*key, file["id"], begin, len(line)))
            else:
                place = (file["run"], file["id"], file["name"], begin, len(line))
                self._episodes.append((*place, *_row(_EPISODES.decode(line))))
        except (ValueError, RecursionError) as error:
            self._broken.append((file["id"], number, begin, str(error)))

    def write(self, connection: sqlite3.Connection) -> None:
        connection.executemany(_INSERT, self._episodes)
        connection.executemany(
            "INSERT OR REPLACE INTO token_lines (run, name, episode, file, start, length) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            self._token_lines,
        )
        connection.executemany("INSERT INTO broken VALUES (?, ?, ?, ?)", self._broken)


def _row(episode: IndexedEpisode) -> tuple[Any, ...]:
    return tuple(value(episode) for _, value in COLUMNS.values())


def _words(episode: IndexedEpisode) -> str:
    """The searchable text: the task, responses, actions and observations."""

    def texts() -> Iterable[str]:
        yield episode.task
        yield episode.observation
        for turn in episode.turns:
            yield turn.response
            if turn.action not in turn.response:
                yield turn.action
            yield turn.observation

    taken, left = [], _MOST_TEXT
    for text in texts():
        taken.append(text[:left])
        left -= len(text)
        if left <= 0:
            break
    return _END_OF_TEXT.join(taken)


def _tail_of(file: BinaryIO, upto: int) -> bytes:
    """The last bytes of a file before `upto`."""
    file.seek(max(0, upto - _TAIL_BYTES))
    return file.read(min(upto, _TAIL_BYTES))


def _whole_lines(file: BinaryIO, start: int, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) from `start` on, up to `max_bytes` or to an incomplete line.

    `start` is the beginning of a line. A line longer than `max_bytes` is yielded as well.
    """
    file.seek(start)
    begin = start
    while begin - start < max_bytes:
        line = file.readline()
        if not line.endswith(b"\n"):
            return
        yield begin, line
        begin += len(line)


def _head_of(path: Path, most: int = _HEAD_BYTES) -> tuple[bytes, int]:
    """A digest of a file's first bytes and their number; appending does not change it."""
    with path.open("rb") as file:
        head = file.read(most)
    return hashlib.sha256(head).digest(), len(head)
