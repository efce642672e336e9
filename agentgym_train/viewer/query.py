"""Queries of the page: filters as SQL, stored episodes, export and pictures."""

from __future__ import annotations

import json
import re
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from agentgym_env.errors import TEACHES, AgentGymError, ConfigError
from agentgym_env.registration import env_class, registered
from agentgym_env.trajectory import Tokens
from agentgym_env.trust import names_in, require_trust
from agentgym_train.data.token_store import StoredTokens, read_pieces, unpack
from agentgym_train.viewer.index import COLUMNS, Index, Place, read_line

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
class Query:
    """Filters as SQL: a condition with its values, and the order."""

    where: str
    values: tuple[Any, ...]
    column: str
    """Column to sort by; rows with equal values are sorted by id."""
    descending: bool


def query_of(index: Index, runs: Mapping[str, int], asked: Mapping[str, Sequence[str]]) -> Query:
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
    return Query(" AND ".join(parts), tuple(values), by, sort.startswith("-"))


def page_of(index: Index, query: Query, offset: int, limit: int) -> list[dict[str, Any]]:
    """Rows `offset` to `offset + limit` of a query's result."""
    way = "DESC" if query.descending else "ASC"
    found = index.rows(
        f"SELECT {SHOWN} FROM episodes WHERE {query.where} "
        f"ORDER BY {query.column} {way}, id {way} LIMIT ? OFFSET ?",
        (*query.values, min(limit, MAX_ROWS), offset),
    )
    return [dict(row) for row in found]


def count_of(index: Index, query: Query) -> dict[str, Any]:
    """Number of episodes and successes of a query, their mean reward and turns, and cut turns."""
    found = index.rows(
        "SELECT COUNT(*) AS total, SUM(success) AS solved, AVG(reward) AS reward, "
        "AVG(turns) AS turns, 1.0 * SUM(cut_turns) / MAX(1, SUM(turns)) AS cut_turns "
        f"FROM episodes WHERE {query.where}",
        query.values,
    )
    return dict(found[0])


def adjacent(index: Index, query: Query, episode: int) -> dict[str, dict[str, Any] | None]:
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
    index: Index,
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


def played(index: Index, run: int) -> list[dict[str, Any]]:
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


def _matching(index: Index, runs: Sequence[int], text: str) -> tuple[str, list[Any]]:
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


CUT = 6_000

"""Maximum characters of a text in the first response; the page requests the rest if needed."""


class StoredTurn(Struct):
    """A stored turn; missing fields get defaults."""

    response: str = ""
    action: str = ""
    observation: str = ""
    reward: float | None = 0.0
    info: Any = None
    cut: bool = False


class Stored(Struct):
    """A stored episode; missing fields get defaults. See `agentgym_env.trajectory`."""

    env: str = ""
    task: str = ""
    seed: int = 0
    instruction: str = ""
    observation: str = ""
    turns: list[StoredTurn] = []
    outcome: str = ""
    policy: str = ""
    horizon: int = 0
    split: str = ""
    category: str | None = None
    success: bool = False
    score: float | None = 0.0
    error: str | None = None
    attempts: int = 1
    step: int = -1
    group: int = -1
    seconds: float = 0.0
    tokens: Tokens | None = None
    further_rows: list[Tokens] = []


_STORED = msgspec.json.Decoder(Stored)

_KEPT = msgspec.json.Decoder(StoredTokens)


class Shelf:
    """Reads the episodes of runs at the locations in the index."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._pieces: dict[Path, tuple[int, list[str]]] = {}

    def raw(self, run: Path, place: Place) -> bytes:
        """The episode's line in its file."""
        path = run / "trajectories" / f"{place.name}.jsonl"
        return read_line(path, place.start, place.length)

    def read(self, run: Path, place: Place) -> Stored:
        """The episode; raises `ConfigError` if its file changed after it was indexed."""
        try:
            return _STORED.decode(self.raw(run, place))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{place.name}.jsonl changed at the episode's position (byte {place.start}): "
                f"{error}. Search for it in the table again"
            ) from error

    def page(self, run: Path, place: Place) -> dict[str, Any]:
        """The episode for its page, without tokens and with long texts truncated."""
        episode = self.read(run, place)
        kept = self._kept(run, place)
        rows = _rows(episode)
        is_kept = kept is not None and bool(kept.packed)
        means = kept.turn_advantages if kept is not None else []
        # An agent may sample several responses per action; then turns have no advantages.
        fits = len(means) == len(episode.turns)
        return {
            **{
                name: getattr(episode, name)
                for name in Stored.__struct_fields__
                if name not in ("turns", "tokens", "further_rows", "seed")
            },
            # JavaScript's integers are exact up to 2**53.
            "seed": str(episode.seed),
            "instruction": cut(episode.instruction),
            "observation": cut(episode.observation),
            "error": cut(episode.error or ""),
            "turns": [
                {
                    "response": cut(turn.response),
                    "action": cut(turn.action),
                    "observation": cut(turn.observation),
                    "reward": turn.reward,
                    "advantage": means[k] if fits else None,
                    "info": cut(info_text(turn.info)),
                    "cut": turn.cut,
                }
                for k, turn in enumerate(episode.turns)
            ],
            "tokens": "kept" if is_kept else "stored" if rows else "",
            "sampled_turns": len(means) or sum(len(row.turn_ends) for row in rows),
        }

    def text(self, run: Path, place: Place, turn: int, field: str) -> str:
        """A full text of the episode; turns are counted from 1, 0 is the start."""
        episode = self.read(run, place)
        if turn == 0 and field in ("instruction", "observation", "error"):
            return str(getattr(episode, field) or "")
        if 1 <= turn <= len(episode.turns) and field in StoredTurn.__struct_fields__:
            found = getattr(episode.turns[turn - 1], field)
            return info_text(found) if field == "info" else str(found)
        raise ConfigError(f"the episode has no text {field!r} at turn {turn}")

    def tokens(self, run: Path, place: Place) -> dict[str, Any]:
        """The episode's rows of tokens, their advantages if stored, and the text of each id."""
        kept = self._kept(run, place)
        advantages: list[float] | None = None
        if kept is not None and kept.packed:
            rows, advantages = unpack(kept.packed)
        else:
            rows = _rows(self.read(run, place))
        used = {i for row in rows for i in (*row.prompt_ids, *row.completion_ids)}
        every = self._pieces_of(run)
        return {
            "rows": [msgspec.to_builtins(row) for row in rows],
            "advantages": advantages,
            "pieces": {str(i): every[i] for i in sorted(used) if i < len(every)},
        }

    def _kept(self, run: Path, place: Place) -> StoredTokens | None:
        at = self._index.token_line(place)
        if at is None:
            return None
        try:
            return _KEPT.decode(read_line(run / "tokens" / f"{place.name}.jsonl", *at))
        except (OSError, ValueError, RecursionError):
            # The file was replaced; the indexer will read it again.
            return None

    def _pieces_of(self, run: Path) -> list[str]:
        folder = run / "tokens"
        stamp = folder.stat().st_mtime_ns if folder.is_dir() else 0
        if run not in self._pieces or self._pieces[run][0] != stamp:
            self._pieces[run] = (stamp, read_pieces(folder))
        return self._pieces[run][1]


def cut(text: str, most: int = CUT) -> str | dict[str, Any]:
    """The text, or the beginning and the length of a long text."""
    if len(text) <= most:
        return text
    return {"text": text[:most], "length": len(text)}


def info_text(info: Any) -> str:
    """A turn's info as JSON; empty if there is none."""
    return json.dumps(info, indent=1, ensure_ascii=False) if info else ""


def _rows(episode: Stored) -> list[Tokens]:
    return [] if episode.tokens is None else [episode.tokens, *episode.further_rows]


_STEERING = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f"  # terminal escapes start with one of these
    "\x80-\x9f"
    "\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\ufff9-\ufffb"
    "\U000e0000-\U000e007f"  # tags: invisible text
    "\ud800-\udfff"  # lone surrogates, which cannot be encoded
    "]"
)

"""The page's `text.js` has the same list; tests/train/test_viewer_hostile.py compares them."""


def visible(text: str) -> str:
    """Escape control, direction and invisible characters, as `⟨U+202E⟩` or `␛`."""
    return _STEERING.sub(lambda found: name_of(found[0]), text)


def name_of(character: str) -> str:
    """The escaped form of such a character."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


_STYLE = """
:root { color-scheme: light dark; --line: #d5d9e0; --soft: #f4f5f8; --faint: #586069;
  --good: #17643a; --bad: #a1281f; --said: #e9eefc }
@media (prefers-color-scheme: dark) { :root { --line: #363c47; --soft: #1d2128; --faint: #a4adba;
  --good: #6fd49a; --bad: #ff9a8f; --said: #1f2a45 } }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.35rem; line-height: 1.3; overflow-wrap: anywhere }
h2 { font-size: .95rem; margin: 1.6rem 0 .4rem; display: flex; gap: .8rem; color: var(--faint) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem }
dt { color: var(--faint) } dd { margin: 0; overflow-wrap: anywhere }
pre { font: 13.5px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  unicode-bidi: plaintext; background: var(--soft); border: 1px solid var(--line);
  border-radius: .5rem; padding: .6rem .8rem; margin: .4rem 0 }
pre.said { background: var(--said) }
.good { color: var(--good) } .bad { color: var(--bad) }
"""


def html_of(episode: Stored, run: str, place: Place) -> str:
    """An episode as a self-contained page without scripts or external resources."""
    facts = {
        "environment": episode.env,
        "task": episode.task,
        "category": episode.category,
        "split": episode.split,
        "policy": episode.policy,
        "outcome": episode.outcome,
        "reward": f"{sum(turn.reward or 0 for turn in episode.turns):g}",
        "turns": f"{len(episode.turns)} (maximum {episode.horizon})",
        "step": episode.step if episode.step >= 0 else None,
        "seed": episode.seed,
        "from": f"{run}, {place.name}.jsonl, byte {place.start}",
        "error": episode.error,
    }
    rows = "".join(
        f"<dt>{name}</dt><dd><bdi>{_text(value)}</bdi></dd>"
        for name, value in facts.items()
        if value not in (None, "")
    )
    parts = [_block("Instruction", episode.instruction)] if episode.instruction else []
    parts.append(_block("Start", episode.observation))
    for number, turn in enumerate(episode.turns, 1):
        reward = turn.reward or 0.0
        kind = "good" if reward > 0 else "bad" if reward < 0 else ""
        shown = f'<span class="{kind}">reward {reward:g}</span>'
        parts.append(f"<h2>Turn {number} {shown}{' cut at turn_max_tokens' * turn.cut}</h2>")
        parts.append(f'<pre class="said">{_text(turn.response)}</pre>')
        if turn.action.strip() != turn.response.strip():
            parts.append(f"<pre>→ {_text(turn.action)}</pre>")
        parts.append(f"<pre>{_text(turn.observation)}</pre>")
    title = _text(f"{episode.task} · {episode.outcome}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1><bdi>{title}</bdi></h1><dl>{rows}</dl>{''.join(parts)}</main></body>"
        "</html>\n"
    )


def lines_of(index: Index, query: Query) -> Iterator[list[tuple[int, Place]]]:
    """Batches of (run id, place) of a query's result, in the order of ids."""
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
        yield [(row["run"], Place(**row)) for row in rows]


def _block(title: str, text: str) -> str:
    return f"<h2>{title}</h2><pre>{_text(text)}</pre>"


def _text(value: Any) -> str:
    return escape(visible(str(value)))


_SIGNATURE = b"\x89PNG\r\n\x1a\n"

_RGB = 2


def png(pixels: Any) -> bytes:
    """Encode (H, W, 3) bytes as PNG."""
    array = np.ascontiguousarray(pixels, dtype=np.uint8)  # (H, W, 3)
    height, width, _ = array.shape
    # Each line starts with its filter type: 0, none.
    lines = np.zeros((height, 1 + width * 3), dtype=np.uint8)
    lines[:, 1:] = array.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 6)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    checked = zlib.crc32(data, zlib.crc32(name))
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checked)


_KEPT_EPISODES = 8

_MODE = "rgb_array"


class NoPicture(AgentGymError):
    """The episode cannot be rendered; the message is the reason."""


class Pictures:
    """Renders episodes, one at a time, and caches the last few."""

    def __init__(self, *, trusted: bool = False) -> None:
        self._trusted = trusted
        self._lock = threading.Lock()
        self._drawn: OrderedDict[tuple[int, str, int], list[bytes]] = OrderedDict()

    def draws(self, env_id: str) -> bool:
        """Whether an environment is installed and can be rendered."""
        try:
            return _MODE in _class_of(env_id).metadata["render_modes"]
        except AgentGymError:
            return False

    def of(
        self, key: tuple[int, str, int], episode: Stored, settings: Mapping[str, Any]
    ) -> list[bytes]:
        """PNGs of the start and after each turn; `key` is the episode's run, file and position.

        Raises `NoPicture`, for example if an observation differs in the replay.
        """
        with self._lock:
            if key not in self._drawn:
                try:
                    names = names_in({"env": episode.env, "env_kwargs": settings})
                    require_trust("the run", names, trusted=self._trusted)
                    self._drawn[key] = _draw(episode, settings)
                except (AgentGymError, TypeError, ValueError, LookupError) as error:
                    raise NoPicture(str(error)) from error
                if len(self._drawn) > _KEPT_EPISODES:
                    self._drawn.popitem(last=False)
            self._drawn.move_to_end(key)
            return self._drawn[key]


def _class_of(env_id: str) -> Any:
    if env_id not in {entry.env_id for entry in registered()}:
        raise NoPicture(f"the environment {env_id[:100]} is not installed")
    return env_class(env_id)


def _draw(episode: Stored, settings: Mapping[str, Any]) -> list[bytes]:
    made = _class_of(episode.env)
    if _MODE not in made.metadata["render_modes"]:
        raise NoPicture(f"{episode.env} cannot be rendered")
    env = made(render_mode=_MODE, **settings)
    try:
        observation, _ = env.reset(seed=episode.seed, options={"task": episode.task})
        _check(0, observation, episode.observation)
        drawn = [png(env.render())]
        for number, turn in enumerate(episode.turns, 1):
            observation = env.step(turn.action)[0]
            _check(number, observation, turn.observation)
            drawn.append(png(env.render()))
        return drawn
    finally:
        env.close()


def _check(turn: int, observation: str, stored: str) -> None:
    if observation != stored:
        raise NoPicture(
            f"the replay's observation differs at turn {turn}: the environment has other settings "
            "or another version"
        )
