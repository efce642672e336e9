"""Filters, order and counts of the page as SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentgym_env.errors import TEACHES, ConfigError
from agentgym_viewer.index import COLUMNS, EpisodeIndex, EpisodeLocation

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
"""Filters by value, and their columns; several values of a filter are alternatives."""

RANGES: Final = {
    "turns": "turns",
    "cut_turns": "cut_turns",
    "step": "step",
    "group": "grp",
    "reward": "reward",
    "score": "score",
    "horizon": "horizon",
}
"""Filters by number, written as `3`, `3..10`, `3..` or `..10`."""

FACETS: Final = ("run", "file", "env", "split", "category", "policy", "outcome", "success")

_SORTS: Final = {**EXACT, **RANGES, "run": "run", "seconds": "seconds", "added": "id"}

SHOWN: Final = ", ".join(
    ("id", "run", "name", "start", "length", *(name for name in COLUMNS if name != "seed"))
)

MAX_ROWS = 500
"""Maximum rows per response."""

_MAX_FACETS = 200

_RANGE = re.compile(r"(-?\d*\.?\d+(?:e-?\d+)?)?(\.\.)?(-?\d*\.?\d+(?:e-?\d+)?)?")


@dataclass(frozen=True, slots=True)
class EpisodeQuery:
    """Filters as SQL: a condition with its values, and the order."""

    where: str
    values: tuple[Any, ...]
    column: str
    """Column to sort by; rows with equal values are sorted by id."""
    descending: bool


def query_of(
    index: EpisodeIndex, runs: Mapping[str, int], asked: Mapping[str, Sequence[str]]
) -> EpisodeQuery:
    """Build the query for a page's parameters; raises `ConfigError` for an invalid filter.

    `runs` are the ids of all runs by name; without a `run` filter all of them are included.
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
        raise ConfigError(f"cannot sort by {sort!r}; choose from {', '.join(sorted(_SORTS))}")
    return EpisodeQuery(" AND ".join(parts), tuple(values), by, sort.startswith("-"))


def page_of(
    index: EpisodeIndex, query: EpisodeQuery, offset: int, limit: int
) -> list[dict[str, Any]]:
    """Rows `offset` to `offset + limit` of a query's result."""
    way = "DESC" if query.descending else "ASC"
    found = index.rows(
        f"SELECT {SHOWN} FROM episodes WHERE {query.where} "
        f"ORDER BY {query.column} {way}, id {way} LIMIT ? OFFSET ?",
        (*query.values, min(limit, MAX_ROWS), offset),
    )
    return [dict(row) for row in found]


def count_of(index: EpisodeIndex, query: EpisodeQuery) -> dict[str, Any]:
    """Number of episodes and successes of a query, their mean reward and turns, and cut turns."""
    found = index.rows(
        "SELECT COUNT(*) AS total, SUM(success) AS solved, AVG(reward) AS reward, "
        "AVG(turns) AS turns, 1.0 * SUM(cut_turns) / MAX(1, SUM(turns)) AS cut_turns "
        f"FROM episodes WHERE {query.where}",
        query.values,
    )
    return dict(found[0])


def adjacent(
    index: EpisodeIndex, query: EpisodeQuery, episode: int
) -> dict[str, dict[str, Any] | None]:
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


def facets(index: EpisodeIndex, runs: Sequence[int]) -> dict[str, list[list[Any]]]:
    """[value, number of episodes] of each filter, the most frequent first; runs are numbers."""
    marks = _marks(runs)
    found: dict[str, list[list[Any]]] = {}
    for name in FACETS:
        rows = index.rows(
            f"SELECT {EXACT.get(name, name)} AS value, COUNT(*) AS n FROM episodes "
            f"WHERE run IN ({marks}) GROUP BY 1 ORDER BY n DESC, value LIMIT {_MAX_FACETS}",
            runs,
        )
        found[name] = [[row["value"], row["n"]] for row in rows]
    return found


def facets_among(
    index: EpisodeIndex,
    runs: Mapping[str, int],
    asked: Mapping[str, Sequence[str]],
    every: Mapping[str, Sequence[Sequence[Any]]],
) -> dict[str, list[list[Any]]]:
    """The values in `every`, with the numbers of episodes that the other filters leave of them."""
    found: dict[str, list[list[Any]]] = {}
    for name in FACETS:
        others = {key: texts for key, texts in asked.items() if key not in (name, "sort")}
        counts: Mapping[Any, int] = {value: n for value, n in every[name]}
        if any(others.values()):
            query = query_of(index, runs, others)
            rows = index.rows(
                f"SELECT {EXACT.get(name, name)} AS value, COUNT(*) AS n FROM episodes "
                f"WHERE {query.where} GROUP BY 1",
                query.values,
            )
            counts = {row["value"]: row["n"] for row in rows}
        found[name] = [[value, counts.get(value, 0)] for value, _ in every[name]]
    return found


def played(index: EpisodeIndex, run: int) -> list[dict[str, Any]]:
    """Statistics of a run's episodes per file, environment and policy, without lost episodes."""
    lost = f"outcome NOT IN ({', '.join(repr(outcome) for outcome in sorted(TEACHES))})"
    rows = index.rows(
        "SELECT name AS file, env, policy, COUNT(*) AS episodes, COUNT(DISTINCT task) AS tasks, "
        f"SUM({lost}) AS lost, AVG(CASE WHEN {lost} THEN NULL ELSE success END) AS success, "
        f"AVG(CASE WHEN {lost} THEN NULL ELSE reward END) AS reward, "
        f"AVG(CASE WHEN {lost} THEN NULL ELSE turns END) AS turns, "
        f"1.0 * SUM(CASE WHEN {lost} THEN 0 ELSE cut_turns END) / "
        f"MAX(1, SUM(CASE WHEN {lost} THEN 0 ELSE turns END)) AS cut_turns "
        "FROM episodes WHERE run = ? GROUP BY name, env, policy ORDER BY name, env, policy",
        (run,),
    )
    return [dict(row) for row in rows]


def lines_of(
    index: EpisodeIndex, query: EpisodeQuery
) -> Iterator[list[tuple[int, EpisodeLocation]]]:
    """Batches of (run id, location) of a query's result, in the order of ids."""
    last = 0
    while True:
        rows = index.rows(
            f"SELECT id, run, name, start, length FROM episodes WHERE {query.where} AND id > ? "
            "ORDER BY id LIMIT ?",
            (*query.values, last, MAX_ROWS),
        )
        if not rows:
            return
        last = rows[-1]["id"]
        yield [(row["run"], EpisodeLocation(**row)) for row in rows]


def _matching(index: EpisodeIndex, runs: Sequence[int], text: str) -> tuple[str, list[Any]]:
    if not index.finds_text:
        # SQLite without FTS5 cannot search texts: search the tasks only.
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
    # `+` makes SQLite use the index of the sort column; otherwise it would fetch and sort all
    # matches, which may be most rows.
    return f"+id IN ({' UNION ALL '.join(parts)})", [words] * len(files)


def _words_of(text: str) -> str:
    """Translate a search text to FTS5: every word, or phrase in quotes, must match."""
    found = []
    for phrase, word in re.findall(r'"([^"]*)"?|([^\s"]+)', text):
        plain = (phrase or word).replace("\x00", " ").strip()
        if not any(letter.isalnum() for letter in plain):
            continue
        # A word matches as a prefix; a phrase must match exactly.
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
        raise ConfigError(
            f"{name} must be a number or a range such as 3..10, got {text!r}"
        ) from None
    return (low, low) if fits[2] is None else (low, high)


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
