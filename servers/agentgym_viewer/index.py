"""The index: the location of each episode, and the values that the page filters and sorts by.

It is built from run folders and can be deleted at any time. Episodes stay in their files. An index
of 100,000 episodes has about 30 MB, plus the size of their texts for the full-text search.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct

from agentgym_env.errors import ConfigError

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

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that SQLite can store."""

_BIGGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class EpisodeLocation:
    """The location of an episode."""

    id: int
    run: int
    name: str
    """Name of the file in `trajectories`, without `.jsonl`."""
    start: int
    length: int
    """Bytes, including the newline."""


class _Turn(Struct):
    reward: float | None = 0.0
    response: str = ""
    action: str = ""
    observation: str = ""
    cut: bool = False


class IndexedEpisode(Struct):
    """The indexed fields of a trajectory; without an environment and a task it is none."""

    env: str
    task: str
    seed: int = 0
    observation: str = ""
    turns: list[_Turn] = []
    outcome: str = ""
    policy: str = ""
    horizon: Int64 = 0
    split: str = ""
    category: str | None = None
    success: bool = False
    score: float | None = 0.0
    attempts: Int64 = 1
    step: Int64 = -1
    group: Int64 = -1
    seconds: float = 0.0


COLUMNS: Final[Mapping[str, tuple[str, Callable[[IndexedEpisode], Any]]]] = {
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


class EpisodeIndex:
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

    def location(self, run: int, name: str, start: int) -> EpisodeLocation | None:
        """The episode that starts at byte `start` of a run's file, if any."""
        found = self.rows(
            "SELECT id, run, name, start, length FROM episodes "
            "WHERE run = ? AND name = ? AND start = ?",
            (run, name, start),
        )
        return EpisodeLocation(**found[0]) if found else None

    def token_line(self, location: EpisodeLocation) -> tuple[int, int] | None:
        """(start, length) of an episode's tokens in `tokens/NAME.jsonl`, if stored."""
        found = self.rows(
            "SELECT start, length FROM token_lines WHERE run = ? AND name = ? AND episode = ?",
            (location.run, location.name, location.start),
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
