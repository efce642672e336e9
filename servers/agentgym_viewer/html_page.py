"""An episode as a self-contained HTML page, with control characters made visible."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from agentgym_viewer.episodes import StoredEpisode
from agentgym_viewer.index import EpisodeLocation

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
"""The page's `text.js` has the same list; tests/viewer/test_viewer_hostile.py compares them."""

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


def visible(text: str) -> str:
    """Escape control, direction and invisible characters, as `⟨U+202E⟩` or `␛`."""
    return _STEERING.sub(lambda found: name_of(found[0]), text)


def name_of(character: str) -> str:
    """The escaped form of such a character."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def html_of(episode: StoredEpisode, run: str, location: EpisodeLocation) -> str:
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
        "from": f"{run}, {location.name}.jsonl, byte {location.start}",
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


def _block(title: str, text: str) -> str:
    return f"<h2>{title}</h2><pre>{_text(text)}</pre>"


def _text(value: Any) -> str:
    return escape(visible(str(value)))
