"""Exports: one episode as a self-contained page, or many as JSON lines."""

from __future__ import annotations

import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numpy as np

from agentgym_env.errors import AgentGymError
from agentgym_env.registration import env_class, registered
from agentgym_env.trust import names_in, require_trust
from agentgym_train.viewer.index import Index, Place
from agentgym_train.viewer.query import MAX_ROWS, Query, Stored, visible

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
