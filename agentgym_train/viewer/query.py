"""From the page's filters to rows of its table, in SQL."""

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

from agentgym_env.errors import AgentGymError, ConfigError
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

SHOWN: Final = ", ".join(
    ("id", "run", "name", "start", "length", *(name for name in COLUMNS if name != "seed"))
)

MAX_ROWS = 500

"""In one answer."""

_MAX_FACETS = 200

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
    """The query that a page asks; raises `ConfigError` for a filter that cannot be.

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
        raise ConfigError(f"rows are sorted by one of {', '.join(sorted(_SORTS))}, got {sort!r}")
    return Query(" AND ".join(parts), tuple(values), by, sort.startswith("-"))


def page_of(index: Index, query: Query, offset: int, limit: int) -> list[dict[str, Any]]:
    """Rows `offset` to `offset + limit` of what a query finds."""
    way = "DESC" if query.descending else "ASC"
    found = index.rows(
        f"SELECT {SHOWN} FROM episodes WHERE {query.where} "
        f"ORDER BY {query.column} {way}, id {way} LIMIT ? OFFSET ?",
        (*query.values, min(limit, MAX_ROWS), offset),
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
            f"GROUP BY 1 ORDER BY n DESC, value LIMIT {_MAX_FACETS}",
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
        raise ConfigError(f"{name} is a number or a range such as 3..10, got {text!r}") from None
    return (low, low) if fits[2] is None else (low, high)


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


CUT = 6_000

"""Characters of one text that are sent at first; the rest when it is asked for."""


class StoredTurn(Struct):
    """A turn, whatever it holds."""

    response: str = ""
    action: str = ""
    observation: str = ""
    reward: float | None = 0.0
    info: Any = None


class Stored(Struct):
    """An episode, whatever is missing of it; see `agentgym_env.trajectory` for the fields."""

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
    """Reads the episodes of runs by the places that the index names."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._pieces: dict[Path, tuple[int, list[str]]] = {}

    def raw(self, run: Path, place: Place) -> bytes:
        """The episode's line as it is on disk."""
        path = run / "trajectories" / f"{place.name}.jsonl"
        return read_line(path, place.start, place.length)

    def read(self, run: Path, place: Place) -> Stored:
        """The episode; raises `ConfigError` if its file is no longer what was indexed."""
        try:
            return _STORED.decode(self.raw(run, place))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{place.name}.jsonl has changed where the episode was (byte {place.start}): "
                f"{error}. Look for it in the table again"
            ) from error

    def page(self, run: Path, place: Place) -> dict[str, Any]:
        """The episode for its page: no tokens, long texts cut."""
        episode = self.read(run, place)
        kept = self._kept(run, place)
        rows = _rows(episode)
        is_kept = kept is not None and bool(kept.packed)
        means = kept.turn_advantages if kept is not None else []
        # An agent may sample more often than it acts; then no turn has an advantage of its own.
        fits = len(means) == len(episode.turns)
        return {
            **{
                name: getattr(episode, name)
                for name in Stored.__struct_fields__
                if name not in ("turns", "tokens", "further_rows", "seed")
            },
            # JavaScript's numbers end at 2**53.
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
                }
                for k, turn in enumerate(episode.turns)
            ],
            "tokens": "kept" if is_kept else "stored" if rows else "",
            "sampled_turns": len(means) or sum(len(row.turn_ends) for row in rows),
        }

    def text(self, run: Path, place: Place, turn: int, field: str) -> str:
        """One text of the episode, whole; `turn` counts from 1, 0 is the start."""
        episode = self.read(run, place)
        if turn == 0 and field in ("instruction", "observation", "error"):
            return str(getattr(episode, field) or "")
        if 1 <= turn <= len(episode.turns) and field in StoredTurn.__struct_fields__:
            found = getattr(episode.turns[turn - 1], field)
            return info_text(found) if field == "info" else str(found)
        raise ConfigError(f"the episode has no text {field!r} at turn {turn}")

    def tokens(self, run: Path, place: Place) -> dict[str, Any]:
        """The episode's rows of tokens, their advantages if known, and the text of each id."""
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
        except (OSError, msgspec.DecodeError):
            # The file was replaced since; the indexer reads it again.
            return None

    def _pieces_of(self, run: Path) -> list[str]:
        folder = run / "tokens"
        stamp = folder.stat().st_mtime_ns if folder.is_dir() else 0
        if run not in self._pieces or self._pieces[run][0] != stamp:
            self._pieces[run] = (stamp, read_pieces(folder))
        return self._pieces[run][1]


def cut(text: str, most: int = CUT) -> str | dict[str, Any]:
    """A text, or the beginning of a long one and how long it is."""
    if len(text) <= most:
        return text
    return {"text": text[:most], "length": len(text)}


def info_text(info: Any) -> str:
    """A turn's info as JSON; nothing where there is none."""
    return json.dumps(info, indent=1, ensure_ascii=False) if info else ""


def _rows(episode: Stored) -> list[Tokens]:
    return [] if episode.tokens is None else [episode.tokens, *episode.further_rows]


_STEERING = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f"  # terminal escapes begin with one of these
    "\x80-\x9f"
    "\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\ufff9-\ufffb"
    "\U000e0000-\U000e007f"  # tags: text that nobody sees
    "\ud800-\udfff"  # half of a pair, which no encoding takes
    "]"
)

"""The page's `text.js` has the same list; tests/train/test_viewer_hostile.py compares them."""


def visible(text: str) -> str:
    """`text` with control, direction and invisible characters written out, as `⟨U+202E⟩` or `␛`."""
    return _STEERING.sub(lambda found: name_of(found[0]), text)


def name_of(character: str) -> str:
    """How one such character is written."""
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
    """One episode as a page of its own. It has no scripts, and may load nothing."""
    facts = {
        "environment": episode.env,
        "task": episode.task,
        "category": episode.category,
        "split": episode.split,
        "policy": episode.policy,
        "outcome": episode.outcome,
        "reward": f"{sum(turn.reward or 0 for turn in episode.turns):g}",
        "turns": f"{len(episode.turns)} of at most {episode.horizon}",
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
        parts.append(f"<h2>Turn {number} {shown}</h2>")
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
    """(run's number, place) of all that a query finds, in the order they were read, by batches."""
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
    """The file of (H, W, 3) bytes."""
    array = np.ascontiguousarray(pixels, dtype=np.uint8)  # (H, W, 3)
    height, width, _ = array.shape
    # Each line begins with the number of its filter: 0, none.
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
    """The episode cannot be drawn; the message says why."""


class Pictures:
    """Draws episodes, one at a time; the last few are kept."""

    def __init__(self, *, trusted: bool = False) -> None:
        self._trusted = trusted
        self._lock = threading.Lock()
        self._drawn: OrderedDict[tuple[int, str, int], list[bytes]] = OrderedDict()

    def draws(self, env_id: str) -> bool:
        """Whether an environment can be drawn here."""
        try:
            return _MODE in _class_of(env_id).metadata["render_modes"]
        except AgentGymError:
            return False

    def of(
        self, key: tuple[int, str, int], episode: Stored, settings: Mapping[str, Any]
    ) -> list[bytes]:
        """PNGs of the start and after each turn; `key` is the episode's run, file and place.

        Raises `NoPicture`, which names the first turn at which the world answered otherwise.
        """
        with self._lock:
            if key not in self._drawn:
                try:
                    names = names_in({"env_kwargs": settings})
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
        raise NoPicture(f"{env_id[:100]} is not among the environments installed here")
    return env_class(env_id)


def _draw(episode: Stored, settings: Mapping[str, Any]) -> list[bytes]:
    made = _class_of(episode.env)
    if _MODE not in made.metadata["render_modes"]:
        raise NoPicture(f"{episode.env} has no pictures")
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
            f"played again, the world answers otherwise at turn {turn}: it has other settings or "
            "another version here"
        )
