"""How the passages and questions about time zones are worded."""

from __future__ import annotations

from agentgym_servers.generated_world.language import Degree, Language, Phrase
from agentgym_servers.real_facts.zone_table import RELATIONS

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
