"""The fact base: entities, what holds of them, and in whose passage each fact is told."""

from __future__ import annotations

import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from agentgym_env.errors import BadRequest

T = TypeVar("T")


class Draws:
    """A stream of draws from a seed; only `random.Random.random` is promised never to change."""

    def __init__(self, *seed: int | str) -> None:
        self._random = random.Random("/".join(map(str, seed))).random

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random() < probability

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[int(self._random() * len(options))]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """The options in another order."""
        order = list(options)
        for last in range(len(order) - 1, 0, -1):
            other = int(self._random() * (last + 1))
            order[last], order[other] = order[other], order[last]
        return order

    def sample(self, options: Sequence[T], size: int) -> list[T]:
        """`size` of the options, each at most once; fewer where there are fewer."""
        if size * 8 > len(options):
            return self.shuffled(options)[:size]
        chosen: dict[int, T] = {}
        while len(chosen) < size:
            place = int(self._random() * len(options))
            chosen[place] = options[place]
        return list(chosen.values())


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


BUILDINGS = ("Tower", "Bridge", "Lighthouse", "Theatre", "Library", "Observatory", "Aqueduct")

ACADEMIES = ("Academy", "Institute", "College", "Conservatory", "Athenaeum")

EVENTS = ("Congress", "Festival", "Regatta", "Exhibition", "Jubilee")

GENRES = ("novel", "opera", "play", "epic", "comedy")

_TITLES = (
    "The Lanterns of {}", "The Orchards of {}", "The Widow of {}", "The Clockmaker of {}",
    "The Bells of {}", "{} in Winter", "A Letter for {}", "The Salt Roads of {}",
    "The Heirs of {}", "The Ferryman of {}", "Midnight at {}", "The Quiet Kings of {}",
    "The Ashes of {}", "Harvest at {}", "The Mirrors of {}", "A Garden for {}",
)  # fmt: skip

_ONSETS = (
    ("b", "br", "d", "dr", "f", "g", "gr", "h", "k", "kl", "l", "m", "n", "p", "r", "s", "sk", "sv",
     "t", "tr", "v"),
    ("c", "ch", "d", "f", "j", "l", "ll", "m", "n", "p", "qu", "r", "s", "sh", "t", "th", "v", "x",
     "y", "z"),
)  # fmt: skip

_VOWELS = (("a", "e", "i", "o", "u", "ae", "y"), ("a", "e", "i", "o", "u", "ia", "eo"))

_CODAS = (
    ("ld", "rn", "sk", "mm", "rd", "lg", "nd", "st", "rv", "kk", "l", "n", "r"),
    ("l", "n", "r", "s", "th", "x", "m", "z", "sh", "ph", "nt"),
)

_ENDINGS = {
    ("town", 0): ("vik", "heim", "stad", "holm", "mark", "gard", "dal", "borg"),
    ("town", 1): ("ona", "issa", "ethia", "uque", "ador", "azan", "iphe", "omar"),
    ("given", 0): ("a", "e", "or", "id", "un", "ar", "is", "ek"),
    ("given", 1): ("ia", "eo", "as", "ine", "ul", "ax", "ey", "ome"),
    ("word", 0): ("en", "ar", "und", "esk", "ok", "il", "ulf", "ry"),
    ("word", 1): ("ael", "ique", "ora", "uz", "ethe", "isho", "amon", "yss"),
}

_TRIPLED = re.compile(r"[bcdfghjklmnpqrstvxz]{4}|[aeiouy]{4}|(.)\1\1")
"""What no word of either language holds: it could not be said."""

_REAL = frozenset(
    ["vostok", "bergen", "bremen", "dresden", "leiden", "norden", "minden", "verden", "sofia"]
)
"""Names of real places that the syllables would allow."""


class Names:
    """Coins the names of one world; a word that was coined once is never coined again."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._used: set[str] = set(_REAL)
        self.given = tuple([self._coin("given", half) for _ in range(160)] for half in (0, 1))
        """The given names of each half; many people share one."""

    def word(self, half: int, flavour: str = "word") -> str:
        """A new word of a half's language: `word` for anything, `town` for a place."""
        return self._coin(flavour, half)

    def person(self, half: int, surname: str | None = None) -> str:
        """A given name and a surname, which is new unless one is named."""
        while True:
            name = f"{self._draws.choice(self.given[half])} {surname or self.word(half)}"
            if name not in self._used:
                self._used.add(name)
                return name

    def titled(self, patterns: tuple[str, ...], word: str) -> str:
        """A name of one of the patterns around a word, unlike all that went before."""
        for pattern in self._draws.shuffled(patterns):
            name = pattern.format(word)
            if name not in self._used:
                self._used.add(name)
                return name
        raise ValueError(f"every name around {word!r} is taken")

    def free(self, patterns: tuple[str, ...], word: str) -> tuple[str, ...]:
        """The patterns by which nothing is named around `word` yet."""
        return tuple(p for p in patterns if p.format(word) not in self._used)

    def near(self, word: str) -> str:
        """A new word that differs from `word` in one vowel or has one letter more."""
        places = [place for place in range(1, len(word)) if word[place] in "aeiou"]
        for place in self._draws.shuffled(places):
            for vowel in self._draws.shuffled("aeiou"):
                coined = word[:place] + vowel + word[place + 1 :]
                if coined.lower() not in self._used:
                    self._used.add(coined.lower())
                    return coined
        return self.near(word + self._draws.choice("elnrst"))

    def _coin(self, flavour: str, half: int) -> str:
        draws = self._draws
        while True:
            syllables = 1 if draws.chance(0.55) else 2
            text = "".join(
                draws.choice(_ONSETS[half]) + draws.choice(_VOWELS[half]) for _ in range(syllables)
            )
            text += draws.choice(_CODAS[half]) + draws.choice(_ENDINGS[flavour, half])
            if len(text) >= 5 and text not in self._used and not _TRIPLED.search(text):
                self._used.add(text)
                return text.capitalize()


def patterns(kind: str) -> tuple[str, ...]:
    """The patterns of names of a kind that are built around a coined word."""
    if kind == "work":
        return _TITLES
    endings = {"building": BUILDINGS, "academy": ACADEMIES, "event": EVENTS}[kind]
    return tuple(f"{{}} {ending}" for ending in endings)


KINDS = ("person", "town", "work", "building", "academy", "event", "river")

ARTICLED = frozenset({"building", "academy", "event", "river"})
"""The kinds whose names take an article inside a sentence."""

CRAFTS = {
    "novelist": "novels",
    "composer": "operas",
    "playwright": "plays",
    "poet": "poems",
    "painter": "paintings",
    "sculptor": "statues",
    "architect": "buildings",
    "surveyor": "maps",
    "engraver": "prints",
    "naturalist": "treatises",
}
"""Every profession and what its members make."""

MAKERS = {
    "novel": "novelist",
    "opera": "composer",
    "play": "playwright",
    "comedy": "playwright",
    "epic": "poet",
}
"""Every genre and the profession it takes."""

RELATIONS = (
    Relation("born_in", "person", "town"),
    Relation("born_on", "person", "date"),
    Relation("buried_in", "person", "town"),
    Relation("married", "person", "person", inverse="married", both_ways=True),
    Relation("output", "person", "number"),
    Relation("taught_at", "person", "academy"),
    Relation("teacher", "person", "person", inverse="pupils", listed=True),
    Relation("fellow_of", "person", "academy", inverse="fellows", listed=True),
    Relation("known_for", "person", "work"),
    Relation("mayor", "town", "person"),
    Relation("settled", "town", "year"),
    Relation("population", "town", "number"),
    Relation("river", "town", "river", inverse="towns", listed=True),
    Relation("maker", "work", "person", inverse="known_for", both_ways=True),
    Relation("set_in", "work", "town"),
    Relation("finished", "work", "year"),
    Relation("dedicated_to", "work", "person", inverse="honoured_by"),
    Relation("kept_at", "work", "academy", inverse="treasure"),
    Relation("architect", "building", "person", inverse="designed"),
    Relation("stands_in", "building", "town", inverse="landmark"),
    Relation("opened_on", "building", "date"),
    Relation("height", "building", "number"),
    Relation("founder", "academy", "person", inverse="founded"),
    Relation("seat", "academy", "town", inverse="hosts"),
    Relation("begun", "academy", "year"),
    Relation("members", "academy", "number"),
    Relation("venue", "event", "town", inverse="hosted"),
    Relation("leader", "event", "person", inverse="led"),
    Relation("held_on", "event", "date"),
    Relation("surveyor", "river", "person", inverse="surveyed"),
    Relation("length", "river", "number"),
    Relation("mouth", "river", "town"),
)

SCHEME = "synthetic"

MOST_HOPS = 4

_EXAMPLE = "synthetic:7?hops=3-4&distractors=2&paraphrase=0.5"


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """Everything that a world depends on: the same value gives the same world everywhere."""

    seed: int = 0
    """Any integer from 0; each seed has its own people, places and history."""
    passages: int = 10_000
    """Passages in the corpus, distractors included; 400 at least."""
    questions: int = 6_000
    """Questions in both splits; one in ten is in the test split."""
    hops: tuple[int, ...] = (1, 2, 3, 4)
    """How many passages a question needs: any of 1 to 4, rising."""
    distractors: int = 1
    """Near-twins of every second entity, 0 to 5: a like name and a passage of the same words."""
    paraphrase: float = 0.5
    """How often a question words a relation as no passage does, 0 to 1."""

    def __post_init__(self) -> None:
        """Refuse what no world can be made from."""
        if self.seed < 0:
            raise BadRequest(f"a world's seed is 0 or more, got {self.seed}")
        if self.passages < 400:
            raise BadRequest(f"a world has 400 passages at least, got {self.passages}")
        if self.questions < 10:
            raise BadRequest(f"a world has 10 questions at least, got {self.questions}")
        if not self.hops or any(not 1 <= hop <= MOST_HOPS for hop in self.hops):
            raise BadRequest(f"hops are among 1 to {MOST_HOPS}, got {self.hops}")
        if list(self.hops) != sorted(set(self.hops)):
            raise BadRequest(f"hops are named once each and rising, got {self.hops}")
        if not 0 <= self.distractors <= 5:
            raise BadRequest(f"distractors are 0 to 5 for an entity, got {self.distractors}")
        if not 0 <= self.paraphrase <= 1:
            raise BadRequest(f"paraphrase is a share from 0 to 1, got {self.paraphrase}")

    @classmethod
    def parse(cls, text: str) -> WorldSpec:
        """The spec that a line such as `synthetic:7?hops=3-4&paraphrase=1` names."""
        match = re.fullmatch(rf"{SCHEME}(?::(\d+))?(?:\?(.*))?", text)
        if match is None:
            raise BadRequest(f"a generated world is named like {_EXAMPLE!r}, got {text[:100]!r}")
        values: dict[str, Any] = {"seed": int(match[1] or 0)}
        for part in filter(None, (match[2] or "").split("&")):
            name, equals, value = part.partition("=")
            if name in values or not equals:
                raise BadRequest(
                    f"each parameter of a world is given once, as NAME=VALUE; got {part[:100]!r}"
                )
            values[name] = _value(name, value)
        return cls(**values)

    def __str__(self) -> str:
        """The shortest line that `parse` reads back as this spec."""
        default = WorldSpec()
        parts = [
            f"{field.name}={_text(field.name, getattr(self, field.name))}"
            for field in fields(self)
            if field.name != "seed" and getattr(self, field.name) != getattr(default, field.name)
        ]
        return f"{SCHEME}:{self.seed}" + ("?" + "&".join(parts) if parts else "")


def _value(name: str, text: str) -> int | float | tuple[int, ...]:
    try:
        if name in ("passages", "questions", "distractors"):
            return int(text)
        if name == "paraphrase":
            return float(text)
        if name == "hops":
            return tuple(hop for part in text.split(",") for hop in _span(part))
    except ValueError:
        raise BadRequest(f"{name}={text[:100]!r} is not a number; try {_EXAMPLE!r}") from None
    known = ", ".join(field.name for field in fields(WorldSpec) if field.name != "seed")
    raise BadRequest(f"a world has no parameter {name[:100]!r}; there are {known}")


def _span(text: str) -> range:
    low, dash, high = text.partition("-")
    return range(int(low), int(high if dash else low) + 1)


def _text(name: str, value: Any) -> str:
    return ",".join(map(str, value)) if name == "hops" else str(value)


def add_twin(facts: FactBase, names: Names, draws: Draws, entity: Entity) -> None:
    """Add an entity with a name like another's, and facts of the same relations."""
    twin = Entity(_near_name(names, draws, entity), entity.kind, entity.half)
    twin.sort, twin.gender, twin.province = entity.sort, entity.gender, entity.province
    if twin.kind in ("building", "academy", "event"):
        twin.sort = twin.name.rpartition(" ")[2].lower()
    twin.twin_of = entity.name
    facts.add(twin)
    for slot, value in entity.told.items():
        if slot in facts.relations and slot not in facts.inverses:
            facts.tell(twin, slot, _other_value(facts, draws, slot, value))
    facts.twins.setdefault((twin.kind, twin.half), []).append(twin.name)


def _near_name(names: Names, draws: Draws, entity: Entity) -> str:
    first, _, last = entity.name.rpartition(" ")
    if entity.kind == "person":
        if draws.chance(0.5):
            return names.person(entity.half, last)
        return f"{first} {names.near(last)}"
    if entity.kind in ("town", "river"):
        return f"{first} {names.near(last)}".strip()
    return _near_title(names, entity)


def _near_title(names: Names, entity: Entity) -> str:
    """Another title around the same word while there is one, then around a word like it."""
    for pattern in patterns(entity.kind):
        head, _, tail = pattern.partition("{}")
        if entity.name.startswith(head) and entity.name.endswith(tail):
            word = entity.name[len(head) : len(entity.name) - len(tail)]
            free = names.free(patterns(entity.kind), word)
            return names.titled(free, word) if free else pattern.format(names.near(word))
    raise ValueError(f"no pattern made the name {entity.name!r}")


def _other_value(facts: FactBase, draws: Draws, slot: str, value: Value) -> Value:
    """A value of the same kind: a little more or less, or what another entity has."""
    if isinstance(value, int):
        spread = 60 if facts.relations[slot].object == "year" else max(3, value // 3)
        return max(2, value + draws.between(-spread, spread))
    if isinstance(value, Day):
        return value._replace(year=value.year + draws.between(-40, 40))
    known = facts.entities[str(value)]
    # Twins keep to themselves, so that what is asked about is not named in too many passages.
    return draws.choice(facts.twins.get((known.kind, known.half)) or [known.name])


HALVES = {"train": 0, "test": 1}
"""The half of the world that each split asks about."""

TEST_SHARE = 0.18
"""The part of the world's entities that lives in the test half."""

_SHARES = {
    "person": 0.42,
    "town": 0.15,
    "work": 0.13,
    "building": 0.12,
    "academy": 0.08,
    "event": 0.06,
    "river": 0.04,
}

_ELSEWHERE = 0.3
"""How often a fact is told in the passage of its object."""


def unfold(spec: WorldSpec) -> FactBase:
    """The facts of a world: two halves that share no entity, and every entity's twins."""
    draws = Draws("history", spec.seed, spec.passages, spec.distractors)
    facts = FactBase(RELATIONS)
    names = Names(draws)
    base = round(spec.passages / (1 + spec.distractors / 2))
    in_test = round(base * TEST_SHARE)
    for half, size in ((0, base - in_test), (1, in_test)):
        _Half(facts, names, draws, half).live(size)
    twinned = draws.shuffled(list(facts.entities.values()))[: (base + 1) // 2]
    while twinned and len(facts.entities) < spec.passages:
        for entity in twinned[: spec.passages - len(facts.entities)]:
            add_twin(facts, names, draws, entity)
    return facts


class _Half:
    """One half of the world while it is made."""

    def __init__(self, facts: FactBase, names: Names, draws: Draws, half: int) -> None:
        self._facts, self._names, self._draws, self._half = facts, names, draws, half
        self._of: dict[str, list[Entity]] = {}
        self._crafts: dict[str, list[Entity]] = {}
        self._provinces = [names.word(half, "town") for _ in range(12)]
        self._year: dict[str, int] = {}
        self._turns: dict[str, list[Entity]] = {}

    def live(self, size: int) -> None:
        """Let `size` entities exist, and everything happen that they have to do with."""
        for kind in KINDS:
            count = round(size * _SHARES[kind])
            if kind == KINDS[-1]:
                count = size - sum(map(len, self._of.values()))
            self._of[kind] = [self._create(kind) for _ in range(count)]
        people = self._of["person"]
        people.sort(key=lambda person: (self._year[person.name], person.name))
        for person in people:
            self._crafts.setdefault(person.sort, []).append(person)
        for person in people:
            self._live_life(person)
        self._gather("teacher", people, 18, 48)
        for kind, make in (
            ("academy", self._make_academy),
            ("work", self._make_work),
            ("building", self._make_building),
            ("event", self._make_event),
            ("river", self._make_river),
            ("town", self._make_town),
        ):
            for entity in self._of[kind]:
                make(entity)
        self._gather("fellow_of", self._of["academy"], -62, -22)
        for person in people:
            academy = self._pick("academy")
            if self._year[academy.name] < self._year[person.name] + 60:
                self._facts.tell(person, "taught_at", academy.name)

    def _create(self, kind: str) -> Entity:
        draws, names, half = self._draws, self._names, self._half
        if kind == "person":
            name = names.person(half)
            self._year[name] = draws.between(1580, 1880)
        elif kind == "town":
            name = names.word(half, "town")
        elif kind == "river":
            name = f"River {names.word(half)}"
        else:
            name = names.titled(patterns(kind), names.word(half))
        entity = Entity(name, kind, half, province=draws.choice(self._provinces))
        if kind == "person":
            entity.sort, entity.gender = draws.choice(tuple(CRAFTS)), draws.choice(("she", "he"))
        elif kind == "work":
            entity.sort = draws.choice(tuple(MAKERS))
        else:
            entity.sort = kind if kind in ("town", "river") else name.rpartition(" ")[2].lower()
        return self._facts.add(entity)

    def _live_life(self, person: Entity) -> None:
        draws, facts, born = self._draws, self._facts, self._year[person.name]
        facts.tell(person, "born_in", self._pick("town").name)
        facts.tell(person, "born_on", _day(draws, born))
        facts.tell(person, "output", draws.between(12, 140))
        if draws.chance(0.6):
            facts.tell(person, "buried_in", self._pick("town").name)
        partner = self._someone(born - 12, born + 12)
        free = not any(facts.get(one.name, "married") for one in (person, partner))
        if free and partner.gender != person.gender and draws.chance(0.7):
            facts.tell_of("married", person, partner)

    def _make_academy(self, academy: Entity) -> None:
        founder = self._pick("person")
        begun = self._year[founder.name] + self._draws.between(25, 60)
        self._year[academy.name] = begun
        self._tell("founder", academy, founder)
        self._tell("seat", academy, self._pick("town"))
        self._facts.tell(academy, "begun", begun)
        self._facts.tell(academy, "members", self._draws.between(40, 900))

    def _make_work(self, work: Entity) -> None:
        maker = self._draws.choice(self._crafts.get(MAKERS[work.sort]) or self._of["person"])
        born = self._year[maker.name]
        self._tell("maker", work, maker, elsewhere=0.5)
        self._facts.tell(work, "set_in", self._pick("town").name)
        self._facts.tell(work, "finished", born + self._draws.between(22, 65))
        self._tell("dedicated_to", work, self._someone(born - 30, born + 30, maker))
        if self._draws.chance(0.7):
            self._tell("kept_at", work, self._pick("academy"))

    def _make_building(self, building: Entity) -> None:
        architect = self._draws.choice(self._crafts.get("architect") or self._of["person"])
        opened = self._year[architect.name] + self._draws.between(25, 60)
        self._tell("architect", building, architect)
        self._tell("stands_in", building, self._pick("town"))
        self._facts.tell(building, "opened_on", _day(self._draws, opened))
        self._facts.tell(building, "height", self._draws.between(14, 160))

    def _make_event(self, event: Entity) -> None:
        leader = self._pick("person")
        held = self._year[leader.name] + self._draws.between(25, 55)
        self._tell("leader", event, leader)
        self._tell("venue", event, self._pick("town"))
        self._facts.tell(event, "held_on", _day(self._draws, held))

    def _make_river(self, river: Entity) -> None:
        surveyors = self._crafts.get("surveyor") or self._of["person"]
        self._tell("surveyor", river, self._draws.choice(surveyors))
        self._facts.tell(river, "length", self._draws.between(45, 900))
        self._facts.tell(river, "mouth", self._pick("town").name)
        free = [t for t in self._of["town"] if not self._facts.get(t.name, "river")]
        chosen = self._draws.sample(free, self._draws.between(2, 4))
        if len(chosen) >= 2:
            self._facts.tell_list("river", chosen, river)

    def _make_town(self, town: Entity) -> None:
        mayor = self._pick("person")
        self._tell("mayor", town, mayor)
        self._facts.tell(town, "settled", self._draws.between(1050, 1560))
        self._facts.tell(town, "population", self._draws.between(900, 98_000))

    def _gather(self, relation: str, owners: list[Entity], low: int, high: int) -> None:
        """Let some owners have two to four people of fitting years, none with another owner."""
        for owner in self._draws.shuffled(owners):
            if not self._draws.chance(0.5):
                continue
            year = self._year[owner.name]
            pool = self._crafts[owner.sort] if relation == "teacher" else self._of["person"]
            free = [
                person
                for person in self._aged(pool, year + low, year + high)
                if not self._facts.get(person.name, relation)
            ]
            chosen = self._draws.sample(free, self._draws.between(2, 4))
            if len(chosen) >= 2:
                self._facts.tell_list(relation, chosen, owner)

    def _tell(
        self, relation: str, subject: Entity, value: Entity, elsewhere: float = _ELSEWHERE
    ) -> None:
        away = self._draws.chance(elsewhere)
        if not (away and self._facts.tell_of(relation, subject, value)):
            self._facts.tell(subject, relation, value.name)

    def _pick(self, kind: str) -> Entity:
        """The next of a kind in a shuffled round, so that none is named much more than others."""
        if not self._turns.get(kind):
            self._turns[kind] = self._draws.shuffled(self._of[kind])
        return self._turns[kind].pop()

    def _aged(self, people: list[Entity], low: int, high: int) -> list[Entity]:
        def born(person: Entity) -> int:
            return self._year[person.name]

        return people[bisect_left(people, low, key=born) : bisect_right(people, high, key=born)]

    def _someone(self, low: int, high: int, but: Entity | None = None) -> Entity:
        """Someone born in these years; anyone where nobody was."""
        fitting = self._aged(self._of["person"], low, high) or self._of["person"]
        chosen = self._draws.choice(fitting)
        return self._pick("person") if chosen is but else chosen


def _day(draws: Draws, year: int) -> Day:
    """A day of a year; none is after the 28th of its month."""
    return Day(year, draws.between(1, 12), draws.between(1, 28))
