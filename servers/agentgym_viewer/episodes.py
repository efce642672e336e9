"""Reads stored episodes, their texts and their tokens from run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from agentgym_env.errors import ConfigError
from agentgym_env.token_store import StoredTokens, read_pieces, unpack_tokens
from agentgym_env.trajectory import Tokens
from agentgym_viewer.index import EpisodeIndex, EpisodeLocation

CUT = 6_000
"""Maximum characters of a text in the first response; the page requests the rest if needed."""

_KEPT = msgspec.json.Decoder(StoredTokens)


class StoredTurn(Struct):
    """A stored turn; missing fields get defaults."""

    response: str = ""
    action: str = ""
    observation: str = ""
    reward: float | None = 0.0
    info: Any = None
    cut: bool = False


class StoredEpisode(Struct):
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


_STORED = msgspec.json.Decoder(StoredEpisode)


class EpisodeReader:
    """Reads the episodes of runs at the locations in the index."""

    def __init__(self, index: EpisodeIndex) -> None:
        self._index = index
        self._pieces: dict[Path, tuple[int, list[str]]] = {}

    def raw(self, run: Path, location: EpisodeLocation) -> bytes:
        """The episode's line in its file."""
        path = run / "trajectories" / f"{location.name}.jsonl"
        return _read_line(path, location.start, location.length)

    def read(self, run: Path, location: EpisodeLocation) -> StoredEpisode:
        """The episode; raises `ConfigError` if its file changed after it was indexed."""
        try:
            return _STORED.decode(self.raw(run, location))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{location.name}.jsonl changed at the episode's position (byte {location.start}): "
                f"{error}. Search for it in the table again"
            ) from error

    def page(self, run: Path, location: EpisodeLocation) -> dict[str, Any]:
        """The episode for its page, without tokens and with long texts truncated."""
        episode = self.read(run, location)
        kept = self._kept(run, location)
        rows = _rows(episode)
        is_kept = kept is not None and bool(kept.packed)
        means = kept.turn_advantages if kept is not None else []
        # An agent may sample several responses per action; then turns have no advantages.
        fits = len(means) == len(episode.turns)
        return {
            **{
                name: getattr(episode, name)
                for name in StoredEpisode.__struct_fields__
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

    def text(self, run: Path, location: EpisodeLocation, turn: int, field: str) -> str:
        """A full text of the episode; turns are counted from 1, 0 is the start."""
        episode = self.read(run, location)
        if turn == 0 and field in ("instruction", "observation", "error"):
            return str(getattr(episode, field) or "")
        if 1 <= turn <= len(episode.turns) and field in StoredTurn.__struct_fields__:
            found = getattr(episode.turns[turn - 1], field)
            return info_text(found) if field == "info" else str(found)
        raise ConfigError(f"the episode has no text {field!r} at turn {turn}")

    def tokens(self, run: Path, location: EpisodeLocation) -> dict[str, Any]:
        """The episode's rows of tokens, their advantages if stored, and the text of each id."""
        kept = self._kept(run, location)
        advantages: list[float] | None = None
        if kept is not None and kept.packed:
            rows, advantages = unpack_tokens(kept.packed)
        else:
            rows = _rows(self.read(run, location))
        used = {i for row in rows for i in (*row.prompt_ids, *row.completion_ids)}
        every = self._pieces_of(run)
        return {
            "rows": [msgspec.to_builtins(row) for row in rows],
            "advantages": advantages,
            "pieces": {str(i): every[i] for i in sorted(used) if i < len(every)},
        }

    def _kept(self, run: Path, location: EpisodeLocation) -> StoredTokens | None:
        at = self._index.token_line(location)
        if at is None:
            return None
        try:
            return _KEPT.decode(_read_line(run / "tokens" / f"{location.name}.jsonl", *at))
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


def _rows(episode: StoredEpisode) -> list[Tokens]:
    return [] if episode.tokens is None else [episode.tokens, *episode.further_rows]


def _read_line(path: Path, start: int, length: int) -> bytes:
    """Read a line at a known location."""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)
