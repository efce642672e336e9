"""Language: everything that says how facts are told in passages and asked for in questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from agentgym_servers.generated_world.facts import Relation


class Phrase(NamedTuple):
    """The wordings of one relation, each a pair of (near, far); `{}` is who or what it is about.

    Near wordings use the words of the passages, far ones avoid them.
    """

    noun: tuple[str, str]
    """The thing itself, inside a question: "the town where {} was born"."""
    ask: tuple[str, str]
    """The whole question."""
    holds: tuple[str, str] | None = None
    """What holds of the one whose relation has the value {}: "was born in {}"."""


class GroupPhrase(NamedTuple):
    """The wordings of a list, each a pair of (near, far); `{n}` is how many it has."""

    many: tuple[str, str]
    one: tuple[str, str]
    """A single one, of whom something is said next."""
    both: tuple[str, str]
    """The first half of a question for what belongs to the list and is something else, too."""


class Degree(NamedTuple):
    """The words for the one of two, and of more, that has the least or most of something."""

    relation: str
    least: bool
    of_two: str
    of_more: str


@dataclass(frozen=True)
class Language:
    """How a world speaks: its relations, and the sentences and questions that tell and ask them."""

    relations: tuple[Relation, ...]
    leads: Mapping[str, tuple[str, ...]]
    """Kind of entity -> the sentences that may open its passage."""
    facts: Mapping[str, tuple[str, ...]]
    """Kind of entity -> the sentences that tell its facts."""
    patterns: Mapping[str, str]
    """Kind of entity or value -> the pattern of its text in a passage."""
    name: str
    """The pattern of an entity that a question names; its one group is the name."""
    phrases: Mapping[str, Phrase]
    groups: Mapping[str, GroupPhrase]
    degrees: tuple[Degree, ...]
    totals: Mapping[str, tuple[str, str]]
    """Relation -> how to ask for its sum over a list, near and far."""

    @cached_property
    def by_name(self) -> Mapping[str, Relation]:
        """Every relation by its name."""
        return {relation.name: relation for relation in self.relations}

    @cached_property
    def by_inverse(self) -> Mapping[str, Relation]:
        """Every relation that its object's passage may tell, by the slot for that."""
        return {relation.inverse: relation for relation in self.relations if relation.inverse}

    def kind_of(self, slot: str) -> str:
        """What fills a slot: a relation's object, or the subject of the relation it inverts."""
        own = self.by_name.get(slot)
        return own.object if own else self.by_inverse[slot].subject
