"""The map's database: the places of the country's towns, made from a seed."""

from __future__ import annotations

import random
import sqlite3
from typing import Final

from agentgym_servers.web import pages
from agentgym_servers.web.country import TOWNS

FIRST_ID: Final = 101
"""Every id has three digits, so that no address is the beginning of another."""
KINDS: Final[tuple[tuple[str, str], ...]] = (
    ("library", "{town} Public Library"),
    ("museum", "Museum of {town}"),
    ("station", "{town} Central Station"),
    ("hospital", "{town} General Hospital"),
    ("university", "University of {town}"),
    ("park", "{town} Botanical Park"),
    ("hotel", "{word} Hotel"),
    ("hotel", "{word} Inn"),
    ("cafe", "{word} Coffee House"),
    ("cafe", "{word} Tea Room"),
    ("pharmacy", "{word} Pharmacy"),
    ("pharmacy", "{word} Chemist"),
    ("bookshop", "{word} Books"),
)
"""(kind, name); a word belongs to one place alone."""

_SCHEMA: Final = """
CREATE TABLE place(id INTEGER PRIMARY KEY, name TEXT UNIQUE, kind TEXT, number TEXT, street TEXT,
  postcode TEXT, town TEXT, region TEXT, latitude REAL, longitude REAL, phone TEXT, hours TEXT);
"""
_FIRST: Final = ("Amber", "Bell", "Copper", "Dove", "Elder", "Falcon", "Garnet", "Heather", "Ivy")
_SECOND: Final = ("Bridge", "Court", "Gate", "Hill", "Lamp", "Mill", "Oak", "Rose", "Star", "Well")
_STREETS: Final = ("Anchor Street", "Baker Lane", "Castle Road", "Dyer Row", "Elm Avenue")
_HOURS: Final = (
    "Mo-Fr 08:00-18:00",
    "Mo-Sa 09:00-20:00",
    "Mo-Su 07:30-22:00",
    "Tu-Su 10:00-17:00",
    "24/7",
)


def make_database(seed: int) -> sqlite3.Connection:
    """Towns and their places; equal for equal seeds."""
    chance = random.Random(seed)
    words = [f"{first} {second}" for first in _FIRST for second in _SECOND]
    words.sort(key=lambda _: chance.random())
    rows: list[tuple[object, ...]] = []
    for town in TOWNS:
        postcode = 10_000 + int(chance.random() * 80_000)
        where = (town.name, town.region, town.latitude, town.longitude)
        name = (FIRST_ID + len(rows), town.name, "town", "", "", str(postcode))
        rows.append((*name, *where, "", ""))
        for kind, pattern in KINDS:
            word = words.pop() if "{word}" in pattern else ""
            named = pattern.format(town=town.name, word=word)
            address = (str(1 + int(chance.random() * 180)), _STREETS[int(chance.random() * 5)])
            latitude = round(town.latitude + (chance.random() - 0.5) * 0.06, 4)
            longitude = round(town.longitude + (chance.random() - 0.5) * 0.08, 4)
            phone = f"+999 {postcode % 1000:03} {int(chance.random() * 900_000) + 100_000}"
            code = str(postcode + int(chance.random() * 9))
            where = (town.name, town.region, latitude, longitude)
            hours = _HOURS[int(chance.random() * 5)]
            number = FIRST_ID + len(rows)
            rows.append((number, named, kind, *address, code, *where, phone, hours))
    return pages.make_database(_SCHEMA, {"place": rows})
