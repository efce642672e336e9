"""The fact base: entities, what holds of them, and in whose passage each fact is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Day(NamedTuple):
    """A date; days compare as they follow one another."""

    year: int
    month: int
    day: int


class Measure(NamedTuple):
    """Minutes of arc or of time; north, east and ahead of UTC are positive."""

    minutes: int
    scale: str
    """`latitude`, `longitude` or `offset`."""


Value = str | int | Day | Measure | tuple[str, ...]
"""An entity's name, a number or year, a date, an angle or offset, or several names."""


def names_in(value: Value | None) -> tuple[str, ...]:
    """The names that a value consists of: one, several, or none."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, tuple) and not isinstance(value, Measure):
        return tuple(name for name in value if isinstance(name, str))
    return ()


@dataclass(frozen=True, slots=True)
class Relation:
    """What one kind of entity can have: an entity of some kind, a `date`, a `year` or a `number`.

    `inverse` names the slot by which the object's passage may tell the fact instead; a relation
    that is `listed` is told there only, beside others: "her pupils were A, B and C".
    """

    name: str
    subject: str
    object: str
    inverse: str | None = None
    listed: bool = False
    both_ways: bool = False


@dataclass(slots=True)
class Entity:
    """Someone or something with a passage of its own, which tells `told`: slot -> value."""

    name: str
    kind: str
    half: int
    sort: str = ""
    """What the entity is among its kind: a profession, a genre, a type of building."""
    gender: str = ""
    province: str = ""
    twin_of: str | None = None
    """The entity that this one is easily taken for; such a twin is never asked about."""
    told: dict[str, Value] = field(default_factory=dict)


class FactBase:
    """Every fact by (subject, relation), with the name of the entity whose passage tells it."""

    def __init__(self, relations: Iterable[Relation]) -> None:
        self.relations: Mapping[str, Relation] = {r.name: r for r in relations}
        self.inverses: Mapping[str, Relation] = {
            r.inverse: r for r in self.relations.values() if r.inverse
        }
        self.entities: dict[str, Entity] = {}
        self.twins: dict[tuple[str, int], list[str]] = {}
        """(kind, half) -> the entities that are there to be taken for others."""
        self._facts: dict[tuple[str, str], tuple[Value, str]] = {}

    def add(self, entity: Entity) -> Entity:
        """Let an entity exist; its name is its own."""
        if entity.name in self.entities:
            raise ValueError(f"there are two entities of the name {entity.name!r}")
        self.entities[entity.name] = entity
        return entity

    def tell(self, subject: Entity, relation: str, value: Value) -> None:
        """State a fact in its subject's passage."""
        self._state(subject.name, relation, value, subject.name)
        subject.told[relation] = value

    def tell_of(self, relation: str, subject: Entity, owner: Entity) -> bool:
        """State that `subject` has `owner` in the owner's passage, unless its place is taken."""
        slot = self.relations[relation].inverse
        if slot is None or slot in owner.told:
            return False
        self._state(subject.name, relation, owner.name, owner.name)
        if self.relations[relation].both_ways:
            self._state(owner.name, slot, subject.name, owner.name)
        owner.told[slot] = subject.name
        return True

    def tell_list(self, relation: str, subjects: Iterable[Entity], owner: Entity) -> None:
        """State in the owner's passage that all of `subjects` have the owner, and no others."""
        slot = self.relations[relation].inverse
        names = tuple(subject.name for subject in subjects)
        if slot is None:
            raise ValueError(f"{relation!r} is not told in lists")
        for name in names:
            self._state(name, relation, owner.name, owner.name)
        self._state(owner.name, slot, names, owner.name)
        owner.told[slot] = names

    def get(self, subject: str, relation: str) -> tuple[Value, str] | None:
        """The value of a fact and whose passage tells it; None where there is no such fact."""
        return self._facts.get((subject, relation))

    def _state(self, subject: str, relation: str, value: Value, owner: str) -> None:
        if (subject, relation) in self._facts:
            raise ValueError(f"{relation!r} of {subject!r} is told already")
        self._facts[subject, relation] = (value, owner)
