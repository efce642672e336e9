"""Language: everything that says how facts are told in passages and asked for in questions."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tools.generated_world.facts import (
    Day,
    FactBase,
    Measure,
    Relation,
    Value,
    names_in,
)

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")

_MONTH = f"(?:{'|'.join(MONTHS)})"

DATE = rf"(?:the )?\d+(?:st|nd|rd|th)?(?: of)? {_MONTH} \d+|{_MONTH} \d+, \d+"
"""A pattern of every form that `date_forms` gives."""


def date_forms(day: Day) -> tuple[str, ...]:
    """The ways to write a date; the first is the plain one."""
    month = MONTHS[day.month - 1]
    return (
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"the {day.day}{ordinal_ending(day.day)} of {month} {day.year}",
    )


def measure_forms(measure: Measure) -> tuple[str, ...]:
    """The ways to write an angle or an offset; the first is how passages write it."""
    whole, rest = divmod(abs(measure.minutes), 60)
    if measure.scale == "offset":
        parts = [
            f"{n} {unit}{'' if n == 1 else 's'}" for n, unit in ((whole, "hour"), (rest, "minute"))
        ]
        side = "ahead of" if measure.minutes > 0 else "behind"
        text = " ".join(part for part in parts if not part.startswith("0 "))
        return (f"{text} {side} UTC",) if text else ("level with UTC",)
    letters = "NS" if measure.scale == "latitude" else "EW"
    letter = letters[measure.minutes < 0]
    word = {"N": "north", "S": "south", "E": "east", "W": "west"}[letter]
    return (
        f"{whole}°{rest:02}' {letter}",
        f"{whole}°{rest:02}'{letter}",
        f"{whole} degrees {rest} minutes {word}",
    )


def read_measure(scale: str, text: str) -> Measure:
    """The angle or offset that the first of the forms stands for."""
    if scale == "offset":
        hours, minutes = (re.search(rf"(\d+) {unit}", text) for unit in ("hour", "minute"))
        size = 60 * int(hours[1] if hours else 0) + int(minutes[1] if minutes else 0)
    else:
        degrees, minute = map(int, re.findall(r"\d+", text))
        size = 60 * degrees + minute
    return Measure(-size if "behind" in text or text[-1] in "SW" else size, scale)


def read_value(kind: str, text: str, listed: bool) -> Value:
    """What a text in a passage stands for: a date, a number, a name or several names."""
    if listed:
        return tuple(re.split(r", | and ", text))
    if kind == "date":
        month = next(place for place, name in enumerate(MONTHS, 1) if name in text)
        day, year = map(int, re.findall(r"\d+", text))
        return Day(year, month, day)
    if kind in ("latitude", "longitude", "offset"):
        return read_measure(kind, text)
    if kind in ("number", "year"):
        return int(text.replace(",", ""))
    return text.partition(" ")[2] if kind == "work" else text


def written_list(names: Sequence[str]) -> str:
    """Names as a sentence gives them: "A, B and C"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def ordinal_ending(number: int) -> str:
    """What makes an ordinal of a number: st, nd, rd or th."""
    if 11 <= number % 100 <= 13:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def answer_forms(value: Value) -> list[str]:
    """Every text that is right, the plainest first; exact match ignores case and articles."""
    if isinstance(value, Day):
        plain, month_first, ordinal = date_forms(value)
        return [plain, month_first, ordinal, f"{value.year}-{value.month:02}-{value.day:02}"]
    if isinstance(value, Measure):
        return list(measure_forms(value))
    if isinstance(value, str) and value.startswith("River "):
        return [value, value.removeprefix("River ")]
    return [str(value)]


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


PHRASES: dict[str, Phrase] = {
    "born_in": Phrase(
        ("the town where {} was born", "the hometown of {}"),
        ("In which town was {} born?", "Where did {} come into the world?"),
        ("was born in {}", "came into the world in {}"),
    ),
    "born_on": Phrase(
        ("the date on which {} was born", "the day on which {} came into the world"),
        ("On what date was {} born?", "On which day did {} come into the world?"),
    ),
    "buried_in": Phrase(
        ("the town where {} is buried", "the last resting place of {}"),
        ("In which town is {} buried?", "Where are the mortal remains of {}?"),
        ("is buried in {}", "was laid to rest in {}"),
    ),
    "married": Phrase(
        ("the spouse of {}", "the partner in life of {}"),
        ("Whom did {} marry?", "Who was the partner in life of {}?"),
    ),
    "output": Phrase(
        ("the number of works that {} completed", "the extent of the oeuvre of {}"),
        ("How many works did {} complete?", "How many pieces make up the oeuvre of {}?"),
    ),
    "taught_at": Phrase(
        ("the society where {} taught", "the employer of {}"),
        ("At which society did {} teach?", "Which institution was the employer of {}?"),
        ("taught at {}", "earned a living at {}"),
    ),
    "teacher": Phrase(
        ("the person whose pupil was {}", "the mentor of {}"),
        ("Whose pupil was {}?", "Who was the mentor of {}?"),
    ),
    "fellow_of": Phrase(
        ("the society whose first fellows included {}", "the body that {} joined early on"),
        (
            "The first fellows of which society included {}?",
            "Which body did {} join early on?",
        ),
    ),
    "known_for": Phrase(
        ("the work that {} is best known for", "the work that made {} famous"),
        ("Which work is {} best known for?", "Which work made {} famous?"),
    ),
    "mayor": Phrase(
        ("the first mayor of {}", "the person who first governed {}"),
        ("Who was the first mayor of {}?", "Who first governed {}?"),
        ("had {} as its first mayor", "was first governed by {}"),
    ),
    "settled": Phrase(
        ("the year in which {} was settled", "the year in which people first moved to {}"),
        ("In which year was {} settled?", "In which year did people first move to {}?"),
    ),
    "population": Phrase(
        ("the number of inhabitants of {}", "the head count of {}"),
        ("How many inhabitants does {} have?", "How many people live in {}?"),
    ),
    "river": Phrase(
        ("the river that flows through {}", "the waterway that passes {}"),
        ("Which river flows through {}?", "Which waterway passes {}?"),
    ),
    "maker": Phrase(
        ("the creator of {}", "the person who thought up {}"),
        ("Who created {}?", "Who thought up {}?"),
    ),
    "set_in": Phrase(
        ("the town in which {} is set", "the place where the action of {} unfolds"),
        ("In which town is {} set?", "Where does the action of {} unfold?"),
    ),
    "finished": Phrase(
        ("the year in which {} was finished", "the year that saw the end of the work on {}"),
        ("In which year was {} finished?", "Which year saw the end of the work on {}?"),
    ),
    "dedicated_to": Phrase(
        ("the person to whom {} is dedicated", "the person honoured by {}"),
        ("To whom is {} dedicated?", "Whom was {} meant to honour?"),
    ),
    "kept_at": Phrase(
        ("the society that keeps the manuscript of {}", "the institution that preserves {}"),
        (
            "Which society keeps the manuscript of {}?",
            "Which institution preserves {}?",
        ),
    ),
    "architect": Phrase(
        ("the architect of {}", "the person who conceived {}"),
        ("Who was the architect of {}?", "Who conceived {}?"),
    ),
    "stands_in": Phrase(
        ("the town in which {} stands", "the place where one can see {}"),
        ("In which town does {} stand?", "Where can one see {}?"),
    ),
    "opened_on": Phrase(
        ("the date on which {} was opened", "the day of the inauguration of {}"),
        ("On what date was {} opened?", "What was the day of the inauguration of {}?"),
    ),
    "height": Phrase(
        ("the height of {}", "the distance from the foot to the top of {}"),
        ("How many metres high is {}?", "How many metres is it from the foot to the top of {}?"),
    ),
    "founder": Phrase(
        ("the founder of {}", "the originator of {}"),
        ("Who was the founder of {}?", "Who was the originator of {}?"),
    ),
    "seat": Phrase(
        ("the seat of {}", "the home of {}"),
        ("Which town is the seat of {}?", "Which place is the home of {}?"),
    ),
    "begun": Phrase(
        ("the year in which {} received its charter", "the first year of the existence of {}"),
        ("In which year did {} receive its charter?", "What was the first year of {}?"),
    ),
    "members": Phrase(
        ("the number of members of {}", "the number of people who belong to {}"),
        ("How many members does {} have?", "How many people belong to {}?"),
    ),
    "venue": Phrase(
        ("the venue of {}", "the place where {} happened"),
        ("Which town was the venue of {}?", "In which place did {} happen?"),
    ),
    "leader": Phrase(
        ("the president of {}", "the person in charge of {}"),
        ("Who was the president of {}?", "Who was in charge of {}?"),
    ),
    "held_on": Phrase(
        ("the date on which {} began", "the opening day of {}"),
        ("On what date did {} begin?", "What was the opening day of {}?"),
    ),
    "surveyor": Phrase(
        ("the person who made the first survey of {}", "the earliest map-maker of {}"),
        ("Who made the first survey of {}?", "Who was the earliest map-maker of {}?"),
    ),
    "length": Phrase(
        ("the length of {}", "the distance from the source to the end of {}"),
        (
            "How many kilometres long is {}?",
            "How many kilometres is it from the source to the end of {}?",
        ),
    ),
    "mouth": Phrase(
        ("the town at the mouth of {}", "the place where {} meets salt water"),
        ("Which town lies at the mouth of {}?", "Where does {} meet salt water?"),
    ),
}

GROUPS: dict[str, GroupPhrase] = {
    "pupils": GroupPhrase(
        ("the {n} pupils of {}", "the {n} people whose mentor was {}"),
        ("the pupil of {} who", "the person mentored by {} who"),
        ("Which person both was a pupil of {} and", "Which person both had {} as mentor and"),
    ),
    "fellows": GroupPhrase(
        ("the {n} first fellows of {}", "the {n} people who were admitted earliest to {}"),
        ("the first fellow of {} who", "the early member of {} who"),
        (
            "Which person both was among the first fellows of {} and",
            "Which person both joined {} early on and",
        ),
    ),
    "towns": GroupPhrase(
        ("the {n} towns on {}", "the {n} places along {}"),
        ("the town on {} that", "the place along {} that"),
        ("Which town both lies on {} and", "Which place both is found along {} and"),
    ),
}

DEGREES = (
    Degree("born_on", True, "elder", "eldest"),
    Degree("born_on", False, "younger", "youngest"),
    Degree("output", True, "less productive", "least productive"),
    Degree("output", False, "more productive", "most productive"),
    Degree("settled", True, "older", "oldest"),
    Degree("population", True, "smaller", "smallest"),
    Degree("population", False, "larger", "largest"),
    Degree("height", True, "lower", "lowest"),
    Degree("height", False, "taller", "tallest"),
    Degree("length", True, "shorter", "shortest"),
    Degree("length", False, "longer", "longest"),
    Degree("finished", True, "earlier", "earliest"),
    Degree("finished", False, "later", "latest"),
)

TOTALS: dict[str, tuple[str, str]] = {
    "output": (
        "How many works did {} complete altogether?",
        "How many pieces make up the oeuvres of {} taken together?",
    ),
    "population": (
        "How many inhabitants do {} have altogether?",
        "How many people live in {} taken together?",
    ),
}


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
