"""From a page's filters to the rows of its table, in SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentgym_env.errors import BadRequest
from agentgym_train.viewer.index import Index

EXACT: Final = {
    "file": "name",
    "env": "env",
    "task": "task",
    "split": "split",
    "category": "category",
    "policy": "policy",
    "outcome": "outcome",
    "success": "success",
}
"""Filters that name values, several of one filter being alternatives, and their columns."""
RANGES: Final = {
    "turns": "turns",
    "step": "step",
    "group": "grp",
    "reward": "reward",
    "score": "score",
    "horizon": "horizon",
}
"""Filters of numbers, written `3`, `3..10`, `3..` or `..10`."""
FACETS: Final = ("file", "env", "split", "category", "policy", "outcome", "success")
_SORTS: Final = {**EXACT, **RANGES, "run": "run", "seconds": "seconds", "added": "id"}
SHOWN: Final = (
    "id, run, name, start, length, env, task, split, category, policy, outcome, success, score, "
    "reward, turns, horizon, step, grp, seconds, attempts"
)
MOST_ROWS = 500
"""In one answer."""
_MOST_FACETS = 200
_RANGE = re.compile(r"(-?\d*\.?\d+(?:e-?\d+)?)?(\.\.)?(-?\d*\.?\d+(?:e-?\d+)?)?")


@dataclass(frozen=True, slots=True)
class Query:
    """Filters as SQL: a condition with its values, and an order."""

    where: str
    values: tuple[Any, ...]
    column: str
    """What is sorted by; rows that are equal in it follow the order they were read in."""
    descending: bool


def query_of(index: Index, runs: Mapping[str, int], asked: Mapping[str, Sequence[str]]) -> Query:
    """The query that a page asks; raises `BadRequest` for a filter that cannot be.

    `runs` are all that are shown, by name; without a `run` filter all of them are meant.
    """
    chosen = [runs[name] for name in asked.get("run", ()) if name in runs]
    if not asked.get("run"):
        chosen = list(runs.values())
    parts = [f"+run IN ({_marks(chosen)})"]
    values: list[Any] = [*chosen]
    for name, column in EXACT.items():
        if wanted := asked.get(name):
            parts.append(f"{column} IN ({_marks(wanted)})")
            values += [int(v == "1") for v in wanted] if name == "success" else wanted
    for name, column in RANGES.items():
        for text in asked.get(name, ())[:1]:
            low, high = _range_of(name, text)
            if low is not None:
                parts.append(f"{column} >= ?")
                values.append(low)
            if high is not None:
                parts.append(f"{column} <= ?")
                values.append(high)
    for text in asked.get("q", ())[:1]:
        if text.strip():
            found, more = _matching(index, chosen, text)
            parts.append(found)
            values += more
    sort = next(iter(asked.get("sort", ())), "-step")
    by = _SORTS.get(sort.removeprefix("-"))
    if by is None:
        raise BadRequest(f"rows are sorted by one of {', '.join(sorted(_SORTS))}, got {sort!r}")
    return Query(" AND ".join(parts), tuple(values), by, sort.startswith("-"))


def page_of(index: Index, query: Query, offset: int, limit: int) -> list[dict[str, Any]]:
    """Rows `offset` to `offset + limit` of what a query finds."""
    way = "DESC" if query.descending else "ASC"
    found = index.rows(
        f"SELECT {SHOWN} FROM episodes WHERE {query.where} "
        f"ORDER BY {query.column} {way}, id {way} LIMIT ? OFFSET ?",
        (*query.values, min(limit, MOST_ROWS), offset),
    )
    return [dict(row) for row in found]


def count_of(index: Index, query: Query) -> dict[str, Any]:
    """How many a query finds, how many of them were solved, and their mean reward and turns."""
    found = index.rows(
        "SELECT COUNT(*) AS total, SUM(success) AS solved, AVG(reward) AS reward, "
        f"AVG(turns) AS turns FROM episodes WHERE {query.where}",
        query.values,
    )
    return dict(found[0])


def neighbours(index: Index, query: Query, episode: int) -> dict[str, dict[str, Any] | None]:
    """The rows before and after an episode in the order of a query."""
    here = index.rows(f"SELECT {query.column} AS k, id FROM episodes WHERE id = ?", (episode,))
    found: dict[str, dict[str, Any] | None] = {}
    for name, onward in (("previous", False), ("next", True)):
        up = onward != query.descending
        rows = index.rows(
            f"SELECT {SHOWN} FROM episodes WHERE {query.where} "
            f"AND ({query.column}, id) {'>' if up else '<'} (?, ?) "
            f"ORDER BY {query.column} {'ASC' if up else 'DESC'}, id {'ASC' if up else 'DESC'} "
            "LIMIT 1",
            (*query.values, here[0]["k"], here[0]["id"]),
        )
        found[name] = dict(rows[0]) if rows else None
    return found


def facets(index: Index, runs: Sequence[int]) -> dict[str, list[list[Any]]]:
    """[value, episodes] of what can be filtered by, the most frequent first."""
    marks = _marks(runs)
    found: dict[str, list[list[Any]]] = {}
    for name in FACETS:
        rows = index.rows(
            f"SELECT {EXACT[name]} AS value, COUNT(*) AS n FROM episodes WHERE run IN ({marks}) "
            f"GROUP BY 1 ORDER BY n DESC, value LIMIT {_MOST_FACETS}",
            runs,
        )
        found[name] = [[row["value"], row["n"]] for row in rows]
    return found


def played(index: Index, run: int) -> list[dict[str, Any]]:
    """What was played in a run: figures of each file and policy. A lost episode is in no mean."""
    lost = "outcome IN ('environment_lost', 'engine_lost', 'environment_error')"
    rows = index.rows(
        "SELECT name AS file, policy, COUNT(*) AS episodes, COUNT(DISTINCT task) AS tasks, "
        f"SUM({lost}) AS lost, AVG(CASE WHEN {lost} THEN NULL ELSE success END) AS success, "
        f"AVG(CASE WHEN {lost} THEN NULL ELSE reward END) AS reward, "
        f"AVG(CASE WHEN {lost} THEN NULL ELSE turns END) AS turns "
        "FROM episodes WHERE run = ? GROUP BY name, policy ORDER BY name, policy",
        (run,),
    )
    return [dict(row) for row in rows]


def _matching(index: Index, runs: Sequence[int], text: str) -> tuple[str, list[Any]]:
    if not index.finds_text:
        # This Python's SQLite cannot search texts; tasks can be looked through.
        return "instr(lower(task), lower(?)) > 0", [text.strip()]
    files = index.rows(
        f"SELECT id FROM files WHERE kind = 'trajectories' AND run IN ({_marks(runs)}) "
        "AND text_upto > 0",
        runs,
    )
    if not files:
        return "0", []
    words = _words_of(text)
    if not words:
        return "0", []
    parts = [
        f"SELECT rowid FROM text_{int(f['id'])} WHERE text_{int(f['id'])} MATCH ?" for f in files
    ]
    # `+`: walk the order's index and look rows up in what was found, which may be most of them;
    # without it SQLite would fetch and sort all of those.
    return f"+id IN ({' UNION ALL '.join(parts)})", [words] * len(files)


def _words_of(text: str) -> str:
    """What a person types, in FTS5's language: every word, or phrase in quotes, must be there."""
    found = []
    for phrase, word in re.findall(r'"([^"]*)"?|([^\s"]+)', text):
        plain = (phrase or word).replace("\x00", " ").strip()
        if not any(letter.isalnum() for letter in plain):
            continue
        # The last letters of a word may still be missing; a phrase is meant as it stands.
        found.append(f'"{plain}"' + ("" if phrase else "*"))
    return " AND ".join(found)


def _range_of(name: str, text: str) -> tuple[float | None, float | None]:
    fits = _RANGE.fullmatch(text.strip())
    try:
        if fits is None or not (fits[1] or fits[3]):
            raise ValueError
        low = float(fits[1]) if fits[1] else None
        high = float(fits[3]) if fits[3] else None
    except ValueError:
        raise BadRequest(f"{name} is a number or a range such as 3..10, got {text!r}") from None
    return (low, low) if fits[2] is None else (low, high)


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
