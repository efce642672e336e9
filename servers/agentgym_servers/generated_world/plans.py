"""What a question asks, as a plan: which facts to look up, and what to make of them.

A plan is carried out on the fact base to know the answer, and by the solver on what it reads.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from agentgym_servers.generated_world.facts import Day, FactBase, Measure, Value, names_in


@dataclass(frozen=True, slots=True)
class Named:
    """An entity that the question names."""

    name: str


@dataclass(frozen=True, slots=True)
class Look:
    """What `of` has by a relation: the mayor of a town, the birthplace of a mayor."""

    relation: str
    of: Term


@dataclass(frozen=True, slots=True)
class Group:
    """The names in a list that a passage gives: the pupils of someone; size 0 is any number."""

    slot: str
    of: Term
    size: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Two entities that are compared."""

    first: Term
    second: Term


@dataclass(frozen=True, slots=True)
class Best:
    """The member of a group that has the least or the most of something."""

    relation: str
    least: bool
    among: Group | Pair


@dataclass(frozen=True, slots=True)
class Member:
    """The only member of a group for which a relation has a value."""

    among: Group
    relation: str
    value: Term


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of a number over a group."""

    relation: str
    among: Group


Term = Named | Look | Best | Member
Plan = Look | Best | Member | Total


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The answer to a plan, and what it takes to know it."""

    answer: Value
    needed: tuple[str, ...]
    """The owners of the passages that tell it."""
    subjects: frozenset[str]
    """What facts are needed about."""
    met: tuple[str, ...]
    """Every entity that is named or met on the way."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A fact that a plan asks for; one that is `tried` may turn out not to be needed."""

    subject: str
    relation: str
    tried: bool = False


Work = Generator[Wanted, Value | None, Value | None]
"""Yields the facts it wants, is sent their values, and returns what the plan comes to."""


def carry_out(plan: Plan | Named) -> Work:
    """What a plan comes to; None where a fact is missing or more than one thing would fit."""
    if isinstance(plan, Named):
        return plan.name
    if isinstance(plan, Look):
        subject = yield from carry_out(plan.of)
        return (yield Wanted(subject, plan.relation)) if isinstance(subject, str) else None
    wanted = (yield from carry_out(plan.value)) if isinstance(plan, Member) else None
    members = yield from _members(plan.among)
    values: dict[str, Value] = {}
    for name in members:
        value = yield Wanted(name, plan.relation, tried=isinstance(plan, Member))
        if value is not None:
            values[name] = value
    if isinstance(plan, Member):
        chosen = _only([name for name, value in values.items() if value == wanted])
        return None if chosen is None or not (yield Wanted(chosen, plan.relation)) else chosen
    if not values or len(values) < len(members):
        return None
    if isinstance(plan, Total):
        return sum(value for value in values.values() if isinstance(value, int))
    end = (min if plan.least else max)(map(_order, values.values()))
    return _only([name for name, value in values.items() if _order(value) == end])


def known(plan: Plan | Named, facts: FactBase) -> Knowledge | None:
    """The answer to a plan by the fact base, and what it takes; None where there is none."""
    work, needed, met = carry_out(plan), dict[str, None](), dict[str, None]()
    subjects: set[str] = set()
    value: Value | None = None
    try:
        wanted = next(work)
        while True:
            fact = facts.get(wanted.subject, wanted.relation)
            value = fact[0] if fact else None
            met[wanted.subject] = None
            met.update(dict.fromkeys(names_in(value)))
            if fact and not wanted.tried:
                needed[fact[1]] = None
                subjects.add(wanted.subject)
            wanted = work.send(value)
    except StopIteration as end:
        answer: Value | None = end.value
    return (
        None
        if answer is None
        else Knowledge(answer, tuple(needed), frozenset(subjects), tuple(met))
    )


def names_of(plan: Plan | Named | Group | Pair) -> tuple[str, ...]:
    """The entities that a plan names."""
    if isinstance(plan, Named):
        return (plan.name,)
    if isinstance(plan, Look | Group):
        return names_of(plan.of)
    if isinstance(plan, Pair):
        return (*names_of(plan.first), *names_of(plan.second))
    return (*names_of(plan.among), *(names_of(plan.value) if isinstance(plan, Member) else ()))


def shape(plan: Plan | Named | Group | Pair) -> str:
    """A plan without its names: `mayor(born_in(*))`."""
    if isinstance(plan, Named):
        return "*"
    if isinstance(plan, Look):
        return f"{plan.relation}({shape(plan.of)})"
    if isinstance(plan, Group):
        return f"{plan.slot}({shape(plan.of)})"
    if isinstance(plan, Pair):
        return f"{shape(plan.first)}, {shape(plan.second)}"
    if isinstance(plan, Best):
        return f"{'least' if plan.least else 'most'} {plan.relation}({shape(plan.among)})"
    if isinstance(plan, Total):
        return f"total {plan.relation}({shape(plan.among)})"
    return f"{shape(plan.among)} with {plan.relation}={shape(plan.value)}"


def _members(group: Group | Pair) -> Generator[Wanted, Value | None, tuple[str, ...]]:
    if isinstance(group, Group):
        owner = yield from carry_out(group.of)
        listed = (yield Wanted(owner, group.slot)) if isinstance(owner, str) else None
        names = names_in(listed)
        return names if group.size in (0, len(names)) else ()
    first = yield from carry_out(group.first)
    second = yield from carry_out(group.second)
    return (*names_in(first), *names_in(second))


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _order(value: Value) -> tuple[int, ...]:
    if isinstance(value, Day):
        return value
    return (
        value.minutes if isinstance(value, Measure) else value if isinstance(value, int) else 0,
    )
