"""World: a corpus of passages and the questions about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentgym_servers.generated_world.solver import Solving
from agentgym_servers.retrieval.passages import Passage


@dataclass(frozen=True, slots=True)
class Question:
    """A question with every right answer, and the passages that together hold it."""

    id: str
    text: str
    answers: list[str]
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

    @property
    def category(self) -> str:
        """Kind and hops, as `bridge-3`."""
        return f"{self.kind}-{self.hops}"


@dataclass(frozen=True, slots=True)
class World:
    """What there is to search, what is asked, and an expert that solves it by searching."""

    name: str
    passages: list[Passage]
    questions: Mapping[str, list[Question]]
    """Split -> its questions; no two splits are about a common entity."""
    solver: Callable[[str], Solving]
