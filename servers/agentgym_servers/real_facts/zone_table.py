"""The frozen table of countries and time zones, and the facts it comes to."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from math import cos, hypot, radians

from agentgym_servers.generated_world.facts import Entity, FactBase, Measure, Relation

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
