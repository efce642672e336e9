"""The index: the location of each episode, and the values that the page filters and sorts by.

It is built from run folders and can be deleted at any time. Episodes stay in their files. An index
of 100,000 episodes has about 30 MB, plus the size of their texts for the full-text search.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
from msgspec import Struct

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import readable_files

_VERSION = 3

"""Version of the tables. An index with another version is rebuilt."""

_TABLES = """
CREATE TABLE runs (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE);
CREATE TABLE files (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
  head BLOB NOT NULL, head_bytes INTEGER NOT NULL, tail BLOB NOT NULL DEFAULT '',
  upto INTEGER NOT NULL DEFAULT 0, lines INTEGER NOT NULL DEFAULT 0,
  text_upto INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL DEFAULT 0,
  UNIQUE (run, kind, name)
);
CREATE TABLE episodes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL, file INTEGER NOT NULL,
  name TEXT NOT NULL, start INTEGER NOT NULL, length INTEGER NOT NULL,
  {columns},
  UNIQUE (file, start)
);
CREATE INDEX by_task ON episodes (task);
CREATE INDEX by_step ON episodes (step, id);
CREATE TABLE token_lines (
  run INTEGER NOT NULL, name TEXT NOT NULL, episode INTEGER NOT NULL, file INTEGER NOT NULL,
  start INTEGER NOT NULL, length INTEGER NOT NULL, PRIMARY KEY (run, name, episode)
) WITHOUT ROWID;
CREATE TABLE broken (
  file INTEGER NOT NULL, line INTEGER NOT NULL, start INTEGER NOT NULL, reason TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of an episode."""

    id: int
    run: int
    name: str
    """Name of the file in `trajectories`, without `.jsonl`."""
    start: int
    length: int
    """Bytes, including the newline."""


class Index:
    """An SQLite file. Each thread has its own connection; only the indexer writes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        try:
            found = self._connect().execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.DatabaseError as error:
            self.close()
            raise ConfigError(
                f"{path} is not an index: {error}. Delete it, or choose another file"
            ) from error
        self.finds_text = _has_fts5(self._connect())
        if found not in (0, _VERSION):
            self._throw_away()
        if found != _VERSION:
            self._connect().executescript(f"{_SCHEMA}PRAGMA user_version = {_VERSION};")

    def stamp(self) -> int:
        """A number that changes with the index's contents, in all processes."""
        found = self.rows("SELECT COALESCE(SUM(size + upto + text_upto), 0) AS n FROM files")
        return int(found[0]["n"])

    def rows(self, sql: str, values: Any = ()) -> list[sqlite3.Row]:
        """The result of a query."""
        return self._connect().execute(sql, values).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction; other processes wait for it."""
        connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def run_id(self, path: Path) -> int:
        """The id of a run's folder, assigned at the first call."""
        with self.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO runs (path) VALUES (?)", (str(path),))
        return int(self.rows("SELECT id FROM runs WHERE path = ?", (str(path),))[0]["id"])

    def forget_file(self, file: int) -> None:
        """Remove the data of a file."""
        with self.writing() as connection:
            for table in ("episodes", "token_lines", "broken"):
                connection.execute(f"DELETE FROM {table} WHERE file = ?", (file,))
            connection.execute("DELETE FROM files WHERE id = ?", (file,))
            connection.execute(f"DROP TABLE IF EXISTS text_{int(file)}")

    def forget_runs_that_are_gone(self) -> None:
        """Remove the runs whose folders no longer exist."""
        for run in self.rows("SELECT id, path FROM runs"):
            if not Path(run["path"]).is_dir():
                for file in self.rows("SELECT id FROM files WHERE run = ?", (run["id"],)):
                    self.forget_file(file["id"])
                with self.writing() as connection:
                    connection.execute("DELETE FROM runs WHERE id = ?", (run["id"],))

    def place(self, run: int, name: str, start: int) -> Place | None:
        """The episode that starts at byte `start` of a run's file, if any."""
        found = self.rows(
            "SELECT id, run, name, start, length FROM episodes "
            "WHERE run = ? AND name = ? AND start = ?",
            (run, name, start),
        )
        return Place(**found[0]) if found else None

    def token_line(self, place: Place) -> tuple[int, int] | None:
        """(start, length) of an episode's tokens in `tokens/NAME.jsonl`, if stored."""
        found = self.rows(
            "SELECT start, length FROM token_lines WHERE run = ? AND name = ? AND episode = ?",
            (place.run, place.name, place.start),
        )
        return (found[0]["start"], found[0]["length"]) if found else None

    def close(self) -> None:
        """Close the connections of all threads, which must not use them any more."""
        while self._opened:
            self._opened.pop().close()
        self._local = threading.local()

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(
                self.path, timeout=30, isolation_level=None, check_same_thread=False
            )
            self._opened.append(connection)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            # A crash may lose the last writes to the index; the files are read again.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA cache_size = -65536")
            self._local.connection = connection
        return connection

    def _throw_away(self) -> None:
        connection = self._connect()
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
            "AND (sql LIKE 'CREATE VIRTUAL%' OR name NOT LIKE 'text_%')"
        ).fetchall()
        for table in tables:
            connection.execute(f'DROP TABLE IF EXISTS "{table["name"]}"')


def _has_fts5(connection: sqlite3.Connection) -> bool:
    options = {row[0] for row in connection.execute("PRAGMA compile_options")}
    return "ENABLE_FTS5" in options


_HEAD_BYTES = 4096

_TAIL_BYTES = 256


def tail_of(file: BinaryIO, upto: int) -> bytes:
    """The last bytes of a file before `upto`."""
    file.seek(max(0, upto - _TAIL_BYTES))
    return file.read(min(upto, _TAIL_BYTES))


def whole_lines(file: BinaryIO, start: int, max_bytes: int) -> Iterator[tuple[int, bytes]]:
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


def read_line(path: Path, start: int, length: int) -> bytes:
    """Read a line at a known location."""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def head_of(path: Path, most: int = _HEAD_BYTES) -> tuple[bytes, int]:
    """A digest of a file's first bytes and their number; appending does not change it."""
    with path.open("rb") as file:
        head = file.read(most)
    return hashlib.sha256(head).digest(), len(head)


logger = logging.getLogger(__name__)

BATCH_BYTES = 2_000_000

"""Bytes per transaction; the page's queries wait for at most one."""

_POLL_S = 0.5

_MOST_TEXT = 200_000

"""Maximum indexed characters of an episode."""

_END_OF_TEXT = "\n\ue000\n"

"""Separator of texts, so that a phrase cannot match across two of them."""

_KINDS = ("trajectories", "tokens")


_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that SQLite can store."""


class _Turn(Struct):
    reward: float | None = 0.0
    response: str = ""
    action: str = ""
    observation: str = ""
    cut: bool = False


class _Episode(Struct):
    """The indexed fields of a trajectory; without an environment and a task it is none."""

    env: str
    task: str
    seed: int = 0
    observation: str = ""
    turns: list[_Turn] = []
    outcome: str = ""
    policy: str = ""
    horizon: _Int64 = 0
    split: str = ""
    category: str | None = None
    success: bool = False
    score: float | None = 0.0
    attempts: _Int64 = 1
    step: _Int64 = -1
    group: _Int64 = -1
    seconds: float = 0.0


class _TokenLine(Struct):
    episode: _Int64


_EPISODES = msgspec.json.Decoder(_Episode)

_TOKEN_LINES = msgspec.json.Decoder(_TokenLine)

_BIGGEST = 2**63 - 1

COLUMNS: Final[Mapping[str, tuple[str, Callable[[_Episode], Any]]]] = {
    "env": ("TEXT", lambda e: e.env),
    "task": ("TEXT", lambda e: e.task),
    "split": ("TEXT", lambda e: e.split),
    "category": ("TEXT", lambda e: e.category or ""),
    "policy": ("TEXT", lambda e: e.policy),
    "outcome": ("TEXT", lambda e: e.outcome),
    "success": ("INTEGER", lambda e: int(e.success)),
    "score": ("REAL", lambda e: e.score or 0.0),
    "reward": ("REAL", lambda e: sum(turn.reward or 0.0 for turn in e.turns)),
    "turns": ("INTEGER", lambda e: len(e.turns)),
    "cut_turns": ("INTEGER", lambda e: sum(turn.cut for turn in e.turns)),
    "horizon": ("INTEGER", lambda e: e.horizon),
    "step": ("INTEGER", lambda e: e.step),
    "grp": ("INTEGER", lambda e: e.group),
    # SQLite's integers have 64 bits; the page reads the exact seed from the file.
    "seed": ("INTEGER", lambda e: max(-_BIGGEST, min(e.seed, _BIGGEST))),
    "seconds": ("REAL", lambda e: e.seconds),
    "attempts": ("INTEGER", lambda e: e.attempts),
}
"""Column of an episode in the index -> its SQL type, and its value."""

_SCHEMA = _TABLES.format(
    columns=", ".join(f"{name} {kind} NOT NULL" for name, (kind, _) in COLUMNS.items())
)

_STORED = ("run", "file", "name", "start", "length", *COLUMNS)

_INSERT = (
    f"INSERT OR IGNORE INTO episodes ({', '.join(_STORED)}) "
    f"VALUES ({', '.join('?' * len(_STORED))})"
)


class Indexer:
    """Follows the files of runs in a separate thread."""

    def __init__(self, index: Index) -> None:
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
            for begin, line in whole_lines(source, upto, BATCH_BYTES):
                lines += 1
                upto = begin + len(line)
                if line.strip():
                    found.add(kind, at, lines, begin, line)
            found.write(connection)
            connection.execute(
                "UPDATE files SET upto = ?, lines = ?, size = ?, tail = ? WHERE id = ?",
                (upto, lines, size, tail_of(source, upto), file["id"]),
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
            for begin, line in whole_lines(source, start, min(BATCH_BYTES, end - start)):
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
            head, taken = head_of(path, max(1, known[0]["head_bytes"]))
            whole = path.stat().st_size >= known[0]["upto"] and taken == known[0]["head_bytes"]
            if whole and head == known[0]["head"] and self._continues(path, known[0]):
                return known[0]
            self._index.forget_file(known[0]["id"])
        head, taken = head_of(path)
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
            return tail_of(file, known["upto"]) == known["tail"]


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


def _row(episode: _Episode) -> tuple[Any, ...]:
    return tuple(value(episode) for _, value in COLUMNS.values())


def _words(episode: _Episode) -> str:
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
