"""The map as a site: places, search, and directions between them."""

from __future__ import annotations

import math
import random
import sqlite3
from typing import Final

import msgspec

from agentgym_servers.web.sites import pages
from agentgym_servers.web.sites.pages import Router, Visit, render
from agentgym_servers.web.sites.site import TOWNS, Request, Response

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


TRAVEL: Final[dict[str, tuple[str, float, float]]] = {
    "car": ("Car", 1.3, 60.0),
    "bike": ("Bicycle", 1.2, 16.0),
    "foot": ("Foot", 1.15, 5.0),
}
"""Name, how much longer than the straight line the way is, and kilometres an hour."""

_RADIUS_KM: Final = 6371.0


class Route(msgspec.Struct, frozen=True):
    """A way."""

    kilometres: float
    minutes: int
    steps: tuple[str, ...]


def route(start: sqlite3.Row, end: sqlite3.Row, by: str) -> Route:
    """The way between two places by `car`, `bike` or `foot`."""
    _, detour, speed = TRAVEL[by]
    exact = straight_km(start, end) * detour
    half = f"{exact / 2:.1f}km"
    begin = f"Start at {start['name']}, {start['street'] or start['town']}"
    middle = f"Go {_heading(start, end)} for {half}, then straight on for {half}"
    if start["town"] != end["town"]:
        middle += f", from {start['town']} to {end['town']}"
    finish = f"Arrive at {end['name']}, {end['street'] or end['town']}"
    minutes = max(1, math.floor(exact / speed * 60 + 0.5))
    return Route(round(exact, 1), minutes, (begin, middle, finish))


def straight_km(start: sqlite3.Row, end: sqlite3.Row) -> float:
    """The great circle between two places."""
    first, second = math.radians(start["latitude"]), math.radians(end["latitude"])
    turn = math.radians(end["longitude"] - start["longitude"])
    rise = math.sin((second - first) / 2) ** 2
    return (
        2
        * _RADIUS_KM
        * math.asin(math.sqrt(rise + math.cos(first) * math.cos(second) * math.sin(turn / 2) ** 2))
    )


def _heading(start: sqlite3.Row, end: sqlite3.Row) -> str:
    north = "north" if end["latitude"] >= start["latitude"] else "south"
    east = "east" if end["longitude"] >= start["longitude"] else "west"
    return f"{north}-{east}"


ROUTER: Final = Router()

MOST: Final = 50

_TEXT: Final = "lower(name || ' ' || kind || ' ' || street || ' ' || postcode || ' ' || town)"


class Map:
    """Places of an invented country, at the paths of WebArena's map."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """The map as every episode begins with it."""
        return make_database(seed)

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        """Answer a request."""
        visit = Visit(database, request)
        return ROUTER.answer(database, request) or _page(visit, "missing.html", 404)


def logged_in_cookies(account: str) -> dict[str, str]:
    """None: the map has no log-in."""
    return {}


def found(visit: Visit, words: str) -> list[sqlite3.Row]:
    """The places that have all the words, the one of exactly this name first."""
    parts = words.lower().replace(",", " ").split()[:8]
    if not parts:
        return []
    tests = " AND ".join(f"instr({_TEXT}, ?) > 0" for _ in parts)
    order = f"ORDER BY lower(name) != ?, kind != 'town', id LIMIT {MOST}"
    return visit.all(f"SELECT * FROM place WHERE {tests} {order}", *parts, words.lower())


@ROUTER.get("/")
def front(visit: Visit) -> Response:
    """The towns."""
    towns = visit.all("SELECT * FROM place WHERE kind='town' ORDER BY name")
    return _page(visit, "front.html", towns=towns)


@ROUTER.get("/search")
def search(visit: Visit) -> Response:
    """The places that have the words of a query."""
    words = visit.query("query")[:200]
    return _page(visit, "search.html", words=words, rows=found(visit, words))


@ROUTER.get("/way/{id}", "/node/{id}")
def place(visit: Visit) -> Response:
    """All that the map knows of a place."""
    row = visit.one("SELECT * FROM place WHERE id=?", visit.number("id"))
    if row is None:
        return _page(visit, "missing.html", 404)
    return _page(visit, "place.html", row=row)


@ROUTER.get("/directions")
def directions(visit: Visit) -> Response:
    """The way from one place to another; of several that fit, the first is taken."""
    by = visit.query("by") if visit.query("by") in TRAVEL else "car"
    asked = (visit.query("from")[:200], visit.query("to")[:200])
    ends = [found(visit, words)[:1] for words in asked]
    way: Route | None = None
    if all(ends):
        way = route(ends[0][0], ends[1][0], by)
    places = [end[0] if end else None for end in ends]
    return _page(
        visit, "directions.html", asked=asked, by=by, way=way, start=places[0], end=places[1]
    )


def _page(visit: Visit, template: str, status: int = 200, /, **values: object) -> Response:
    travel = [(key, name) for key, (name, _, _) in TRAVEL.items()]
    given = {"asked": ("", ""), "by": "car", **values}
    return Response(render(__package__, template, travel=travel, **given), status)
