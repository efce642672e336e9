"""The world of time zones: passages, questions and their expert, from the frozen table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from math import cos, hypot, radians

from agentgym_servers.worlds.search.corpora import SearchWorld
from agentgym_servers.worlds.search.retrieval.passages import Passage
from tools.generated_world.facts import Day, Draws, Entity, FactBase, Measure, Relation, names_in
from tools.generated_world.grammar import OneSearch, Solver, Words
from tools.generated_world.language import (
    Best,
    Degree,
    Language,
    Look,
    Named,
    Pair,
    Phrase,
    Plan,
    Term,
    known,
    measure_forms,
    written_list,
)
from tools.generated_world.prose import told_slots
from tools.generated_world.questions import Asker, Corpus

RELATIONS = (
    Relation("code", "country", "code"),
    Relation("zone", "country", "zone"),
    Relation("country", "zone", "country", inverse="zones", listed=True),
    Relation("latitude", "zone", "latitude"),
    Relation("longitude", "zone", "longitude"),
    Relation("january", "zone", "offset"),
    Relation("july", "zone", "offset"),
    Relation("nearest", "zone", "country"),
)

_TEST_AREA = "Africa"
"""The test half: the countries whose clocks are named after this part of the world."""


@dataclass(frozen=True, slots=True)
class Row:
    """A time zone of a country: its reference place in minutes of arc, its offsets in minutes."""

    code: str
    country: str
    zone: str
    latitude: int
    longitude: int
    january: int
    july: int

    def distance(self, other: Row) -> float:
        """How far two reference places are apart on the map, in minutes of latitude."""
        middle = radians((self.latitude + other.latitude) / 120)
        east = abs(self.longitude - other.longitude)
        return hypot(self.latitude - other.latitude, min(east, 21_600 - east) * cos(middle))


def read_table() -> list[Row]:
    """The rows of the table, in its order: by country code."""
    text = files(__package__).joinpath("timezones.tsv").read_text(encoding="utf-8")
    return [_row(line) for line in text.splitlines() if not line.startswith("#")]


def zone_facts(rows: list[Row]) -> FactBase:
    """Every country and zone with what holds of it, told in its own passage."""
    facts = FactBase(RELATIONS)
    of_country: dict[str, list[Row]] = {}
    for row in rows:
        of_country.setdefault(row.country, []).append(row)
    half = {c: int(own[0].zone.startswith(_TEST_AREA)) for c, own in of_country.items()}
    countries = {name: facts.add(Entity(name, "country", half[name])) for name in of_country}
    zones = [facts.add(Entity(row.zone, "zone", half[row.country])) for row in rows]
    for row, zone in zip(rows, zones, strict=True):
        _tell_zone(facts, zone, row, rows)
    by_zone = {zone.name: zone for zone in zones}
    for name, own in of_country.items():
        facts.tell(countries[name], "code", own[0].code)
        if len(own) == 1:
            facts.tell(countries[name], "zone", own[0].zone)
        else:
            facts.tell_list("country", [by_zone[row.zone] for row in own], countries[name])
    return facts


def _row(line: str) -> Row:
    code, country, zone, *numbers = line.split("\t")
    latitude, longitude, january, july = map(int, numbers)
    return Row(code, country, zone, latitude, longitude, january, july)


def _tell_zone(facts: FactBase, zone: Entity, row: Row, rows: list[Row]) -> None:
    facts.tell(zone, "latitude", Measure(row.latitude, "latitude"))
    facts.tell(zone, "longitude", Measure(row.longitude, "longitude"))
    facts.tell(zone, "january", Measure(row.january, "offset"))
    facts.tell(zone, "july", Measure(row.july, "offset"))
    abroad = sorted((r for r in rows if r.country != row.country), key=row.distance)
    nearest = list(dict.fromkeys(other.country for other in abroad[:40]))
    facts.tell(zone, "nearest", nearest[0])
    zone.told["further"] = tuple(nearest[1:4])


LEADS = {
    "country": (
        "{N} appears in the list of countries and territories under the code {code}.",
        "The two-letter code of {N} is {code}.",
    ),
    "zone": (
        "{N} is a time zone of the tz database, named after its reference place.",
        "{N} names a time zone, and with it the place whose clocks the zone follows.",
    ),
}

FACTS = {
    "country": (
        "All of its clocks follow the zone {zone}.",
        "The only time zone in use is {zone}.",
        "Its clocks follow several zones, namely {zones}.",
        "The time zones in use are {zones}.",
    ),
    "zone": (
        "The reference place lies at the latitude {latitude}.",
        "Its latitude is {latitude}.",
        "The reference place lies at the longitude {longitude}.",
        "Its longitude is {longitude}.",
        "In January 2025 its clocks were {january}.",
        "In July 2025 its clocks were {july}.",
        "The nearest reference place of another country is one of {nearest}, as the map has it.",
        "Abroad, a reference place of {nearest} is the nearest on the map.",
        "A little further away on the map are places of {further}, in this order.",
    ),
}

COLOUR = {
    "country": (
        "Codes of this kind are also used for internet domains, on parcels and in passports.",
        "The table gives the usual English name, which may differ from the official one.",
        "Being listed says nothing about borders or about who governs.",
        "Clocks that have agreed since 1970 share a zone, even across a border.",
        "A zone is named after its most populous place, as a rule, and not after a country.",
    ),
    "zone": (
        "Coordinates are those of the place after which the zone is named.",
        "Offsets are counted from Coordinated Universal Time.",
        "Whether clocks are put forward in summer is for governments to decide.",
    ),
}

PHRASES = {
    "code": Phrase(
        ("the code of {}", "the abbreviation for {}"),
        ("What is the two-letter code of {}?", "Which two letters abbreviate {}?"),
    ),
    "zone": Phrase(
        ("the time zone of {}", "the tz database entry for {}"),
        ("Which time zone do all clocks in {} follow?", "What is the tz database entry for {}?"),
    ),
    "latitude": Phrase(
        ("the latitude of {}", "the distance from the equator of {}"),
        (
            "What is the latitude of the reference place of {}?",
            "How many degrees and minutes north or south of the equator is the namesake of {}?",
        ),
    ),
    "longitude": Phrase(
        ("the longitude of {}", "the distance from Greenwich of {}"),
        (
            "What is the longitude of the reference place of {}?",
            "How many degrees and minutes east or west of Greenwich is the namesake of {}?",
        ),
    ),
    "january": Phrase(
        ("the offset of {} in January 2025", "the winter offset of {}"),
        (
            "In January 2025, how far from UTC were the clocks of {}?",
            "At the start of 2025, by how much did {} differ from UTC?",
        ),
    ),
    "july": Phrase(
        ("the offset of {} in July 2025", "the summer offset of {}"),
        (
            "In July 2025, how far from UTC were the clocks of {}?",
            "In the middle of 2025, by how much did {} differ from UTC?",
        ),
    ),
    "nearest": Phrase(
        (
            "the country with the nearest reference place to that of {}",
            "the closest foreign country on the map of {}",
        ),
        (
            "Which other country has the nearest reference place to that of {}?",
            "On the map, which foreign country is closest to the namesake of {}?",
        ),
    ),
}

_PART = r"(?:[A-ZÀ-Þ][\w.'-]*|\([\w. ]+\)|d'Ivoire)"

_COUNTRY = rf"[A-ZÀ-Þ][\w.'-]*(?: (?:(?:of|the|and|&) )*{_PART})*"

_ZONE = r"[A-Z]\w+(?:/[\w-]+)+"

LANGUAGE = Language(
    relations=RELATIONS,
    leads=LEADS,
    facts=FACTS,
    patterns={
        "country": _COUNTRY,
        "zone": _ZONE,
        "code": "[A-Z]{2}",
        "latitude": "[0-9]+°[0-9]+' [NS]",
        "longitude": "[0-9]+°[0-9]+' [EW]",
        "offset": "(?:[0-9a-z ]+ (?:ahead of|behind)|level with) UTC",
    },
    name=rf"({_ZONE}|{_COUNTRY})",
    phrases=PHRASES,
    groups={},
    degrees=(
        Degree("latitude", True, "more southerly", "southernmost"),
        Degree("latitude", False, "more northerly", "northernmost"),
    ),
    totals={},
)

solver = Solver(LANGUAGE)
"""Solves the questions about time zones by reading; it knows how they are worded, and no fact."""

NAME = "timezones"

_SIZES = {"train": 800, "test": 150}

_WEIGHTS = {
    ("lookup", 1): 22,
    ("bridge", 2): 38,
    ("bridge", 3): 10,
    ("bridge", 4): 12,
    ("comparison", 4): 18,
}

# Few offsets are in use, so that they could be guessed; they are asked for less often.
_ASKED = (*PHRASES, "latitude", "longitude", "nearest", "zone")


def timezones() -> SearchWorld:
    """Countries, their zones and the zones' reference places; no country is in both splits."""
    facts = zone_facts(read_table())
    draws = Draws(NAME, "prose")
    passages = [
        _passage(f"{place:06}", entity, draws)
        for place, entity in enumerate(facts.entities.values())
    ]
    ids = {name: f"{place:06}" for place, name in enumerate(facts.entities)}
    corpus = Corpus(facts, ids, OneSearch(passages))
    questions = {}
    for half, (split, size) in enumerate(_SIZES.items()):
        own = Draws(NAME, split)

        def choose(wordings: tuple[str, str], draws: Draws = own) -> str:
            return wordings[draws.chance(0.5)]

        words = Words(LANGUAGE, str, choose)
        asker = Asker(corpus, _ZoneSampler(facts, own, half), words, _WEIGHTS)
        questions[split] = own.shuffled(asker.ask(split, size, (1, 2, 3, 4)))
    return SearchWorld(NAME, passages, questions)


class _ZoneSampler:
    """Draws plans that stay within one half of the table."""

    def __init__(self, facts: FactBase, draws: Draws, half: int) -> None:
        self._facts, self._draws, self._half = facts, draws, half
        own = [
            entity.name
            for entity in facts.entities.values()
            if entity.half == half and re.fullmatch(LANGUAGE.name, entity.name)
        ]
        self._zones = [name for name in own if facts.entities[name].kind == "zone"]
        self._countries = [name for name in own if facts.get(name, "zone")]

    def draw(self, kind: str, hops: int) -> Plan | None:
        """A plan of a kind that may take `hops` passages, if it meets no other half's country."""
        draws = self._draws
        term: Term
        if kind == "lookup":
            term = Named(draws.choice(draws.choice((self._zones, self._countries))))
        elif kind == "comparison":
            first, second = draws.sample(self._countries, 2)
            pair = Pair(Look("zone", Named(first)), Look("zone", Named(second)))
            term = Best("latitude", draws.chance(0.5), pair)
        else:
            term = Look("zone", Named(draws.choice(self._countries)))
            if hops > 2:
                term = Look("nearest", term)
            if hops > 3:
                term = Look("zone", term)
        plan = Look(draws.choice(_ASKED), term)
        knowledge = known(plan, self._facts)
        if knowledge is None:
            return None
        met = [*knowledge.met, *names_in(knowledge.answer)]
        entities = [self._facts.entities[name] for name in met if name in self._facts.entities]
        return plan if all(entity.half == self._half for entity in entities) else None


def _passage(id: str, entity: Entity, draws: Draws) -> Passage:
    """What the table says about an entity, in sentences."""
    lead = draws.choice(LEADS[entity.kind])
    left = set(entity.told) - told_slots(lead)
    chosen = []
    for template in draws.shuffled(FACTS[entity.kind]):
        if told_slots(template) <= left:
            left -= told_slots(template)
            chosen.append(template)
    chosen += draws.sample(COLOUR[entity.kind], 3 if entity.kind == "country" else 1)
    sentences = [lead, *draws.shuffled(chosen)]
    texts = {slot: _text(entity, slot) for slot in entity.told}
    text = " ".join(sentence.format(N=entity.name, **texts) for sentence in sentences)
    return Passage(id, f'"{entity.name}"\n{text}')


def _text(entity: Entity, slot: str) -> str:
    value = entity.told[slot]
    if isinstance(value, Measure):
        return measure_forms(value)[0]
    return "" if isinstance(value, int | Day) else written_list(names_in(value))
