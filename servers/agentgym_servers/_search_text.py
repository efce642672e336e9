"""What a turn of the search world says, and how passages are shown; knows no questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentgym_servers.retrieval.passages import Hit

MOST_PASSAGES = 100
_MAX_PASSAGE_CHARS = 8_000  # 100 such passages fit an observation


class Move(NamedTuple):
    """A turn that can be understood."""

    kind: str
    """`search` or `answer`."""
    text: str


def read_move(action: str) -> Move | None:
    r"""The first search or answer of a turn, whatever is around it.

    It is the first match of `<(search|answer)>(.*?)</\1>`, in time that grows with the length.
    """
    kinds = ("search", "answer")
    found = [(pair[0], kind, pair[1]) for kind in kinds if (pair := _pair(action, kind, 0))]
    if not found:
        return None
    _, kind, text = min(found)
    return Move(kind, text.strip())


def last_answer(action: str) -> str:
    """The text of the last `<answer>...</answer>`, which is what the original compares."""
    text, place = "", 0
    while pair := _pair(action, "answer", place):
        _, text, place = pair
    return text.strip()


def shown(hits: Sequence[Hit]) -> str:
    """Passages as Search-R1 writes them: `Doc 1(Title: "Title") Text`, one a line."""
    lines = [f"Doc {number}{_document(hit)}" for number, hit in enumerate(hits, 1)]
    return f"<information>{''.join(lines).strip()}</information>"


def searched(query: str) -> str:
    """The turn that searches for a query."""
    return f"<search>{query}</search>"


def answered(text: str) -> str:
    """The turn that gives an answer."""
    return f"<answer>{text}</answer>"


def _document(hit: Hit) -> str:
    title, _, text = hit.passage.contents[:_MAX_PASSAGE_CHARS].partition("\n")
    return f"(Title: {title}) {text}\n"


def _pair(text: str, kind: str, place: int) -> tuple[int, str, int] | None:
    """The first pair of tags from `place` on: where it begins, what it holds, where it ends."""
    opening, closing = f"<{kind}>", f"</{kind}>"
    start = text.find(opening, place)
    end = text.find(closing, start + len(opening)) if start >= 0 else -1
    return (start, text[start + len(opening) : end], end + len(closing)) if end >= 0 else None
