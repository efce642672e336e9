"""Passages with ids and titles, and the protocol of everything that finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from agentgym_env.errors import AgentGymError


class RetrieverFailed(AgentGymError):
    """A search has no answer: the retriever is gone, hangs, or answers nonsense."""


class Passage(msgspec.Struct, frozen=True):
    """A passage of Search-R1's form: `contents` is a quoted title, a newline and the text."""

    id: str
    contents: str

    @property
    def title(self) -> str:
        """The first line, without its quotation marks."""
        return self.contents.partition("\n")[0].strip().strip('"')

    @property
    def text(self) -> str:
        """Everything after the first line."""
        return self.contents.partition("\n")[2]


class Hit(msgspec.Struct, frozen=True):
    """A passage that was found, and how well it fits; scores compare within one answer only."""

    passage: Passage
    score: float


class Retriever(Protocol):
    """Finds the passages nearest to each query; knows nothing about questions and rewards."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, best first, in the queries' order.

        Raises `RetrieverFailed` when the answer cannot be had.
        """
        ...
