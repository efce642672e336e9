"""The corpora that come with the package, and files like theirs.

A corpus is a file of JSON lines: a header, the passages, the questions; `.xz` compresses it.
`python -m tools.generated_world`, in a clone of the repository, writes such files.
"""

from __future__ import annotations

import lzma
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.retrieval.passages import Passage

SHIPPED: Final[Mapping[str, str]] = {
    "synthetic:0": "synthetic-0.jsonl.xz",
    "timezones": "timezones.jsonl.xz",
}
"""Corpus -> its file in the folder `data` next to this module."""

_ALIASES: Final = {"synthetic": "synthetic:0"}

_SUFFIXES: Final = (".jsonl", ".jsonl.xz")

Solving = Generator[str, Sequence[Passage], str]
"""Yields search queries, is sent the passages found, and returns the answer."""


class FactSearch(msgspec.Struct, frozen=True, array_like=True):
    """One fact that an answer depends on: which passage states it, and how to search for it."""

    title: str
    """The title of the passage."""
    queries: list[str]
    """Queries in the order in which to try them."""


class Question(msgspec.Struct, frozen=True):
    """A question with every right answer, and the passages that together contain it."""

    id: str
    text: str
    answers: list[str]
    """The plainest form first."""
    hops: int
    """How many passages it takes."""
    kind: str
    """`lookup`, `bridge`, `comparison`, `count` or `intersection`."""
    support: list[str]
    """The ids of the passages it takes, in the order in which they lead to one another."""
    template: str
    """The relations it asks about, without names."""
    entities: list[str]
    """Every entity it is about: named, met on the way, or the answer."""
    searches: list[FactSearch] = []
    """What the expert searches for, fact by fact."""

    @property
    def category(self) -> str:
        """Kind and hops, as `bridge-3`."""
        return f"{self.kind}-{self.hops}"


class _Header(msgspec.Struct, frozen=True):
    """The first line of a file: the name of the corpus and how many lines of what follow."""

    name: str
    passages: int
    questions: dict[str, int]
    """Split -> its questions."""


@dataclass(frozen=True, slots=True)
class SearchWorld:
    """The passages to search, and the questions."""

    name: str
    passages: list[Passage]
    questions: Mapping[str, list[Question]]
    """Split -> its questions; no two splits are about a common entity."""


def solve(question: Question) -> Solving:
    """Search for each fact in turn until its passage is found; an empty answer gives up.

    No query is made twice.
    """
    found: dict[str, frozenset[str]] = {}
    for fact in question.searches:
        for query in fact.queries:
            if query not in found:
                passages = yield query
                found[query] = frozenset(passage.title for passage in passages)
            if fact.title in found[query]:
                break
        else:
            return ""
    return question.answers[0]


@lru_cache(maxsize=4)
def open_world(corpus: str) -> SearchWorld:
    """The world of a corpus such as `synthetic:0`, or of a file; the last few are kept."""
    name = SHIPPED.get(_ALIASES.get(corpus, corpus))
    if name is not None:
        packed = files(__package__).joinpath("data", name).read_bytes()
        return _decoded(corpus, lzma.decompress(packed))
    if not corpus.endswith(_SUFFIXES):
        raise BadRequest(
            f"no corpus {corpus[:100]!r} comes with the package; there are {', '.join(SHIPPED)}. "
            "For another generated world, such as 'synthetic:7?hops=3-4', make a file with "
            "`python -m tools.generated_world` in a clone of the repository, and name the file"
        )
    try:
        data = Path(corpus).expanduser().read_bytes()
        return _decoded(corpus, lzma.decompress(data) if corpus.endswith(".xz") else data)
    except (OSError, lzma.LZMAError) as error:
        raise BadRequest(f"cannot read the corpus {corpus}: {error}") from error


def encoded(world: SearchWorld) -> bytes:
    """The lines of a world's file, not compressed."""
    sizes = {split: len(questions) for split, questions in world.questions.items()}
    rows: list[msgspec.Struct] = [_Header(world.name, len(world.passages), sizes), *world.passages]
    for questions in world.questions.values():
        rows += questions
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _decoded(corpus: str, data: bytes) -> SearchWorld:
    try:
        first, *lines = data.splitlines()
        header = msgspec.json.decode(first, type=_Header)
        if len(lines) != header.passages + sum(header.questions.values()):
            raise ValueError("its number of lines differs from its header")
        passage = msgspec.json.Decoder(Passage).decode
        question = msgspec.json.Decoder(Question).decode
        questions, start = {}, header.passages
        for split, size in header.questions.items():
            questions[split] = [question(line) for line in lines[start : start + size]]
            start += size
        return SearchWorld(
            header.name, [passage(line) for line in lines[: header.passages]], questions
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise BadRequest(f"{corpus} is not a corpus with questions: {error}") from error
