"""The tasks of the map, with answers from the same places and ways."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from agentgym_servers.web.sites.map import site
from agentgym_servers.web.sites.map.site import TRAVEL, route, straight_km
from agentgym_servers.web.tasks.scripts import Click, Fill, ScriptedTask, Select, Step
from agentgym_servers.web.tasks.task_forms import (
    Databases,
    Instance,
    TaskBook,
    answered,
    answered_exactly,
    arrived,
    rows,
)

BOOK: Final = TaskBook("map")


def tasks(seed: int) -> list[ScriptedTask]:
    """The map's tasks over the data of a seed."""
    return BOOK.tasks({"map": site.make_database(seed)}, seed)


@BOOK.template(1201, "What is the postcode of {{place}}?")
def postcode(databases: Databases) -> Iterator[Instance]:
    """Read a line."""
    yield from _read(databases, "postcode")


@BOOK.template(1202, "What is the phone number of {{place}}?")
def phone(databases: Databases) -> Iterator[Instance]:
    """Read a line."""
    yield from _read(databases, "phone")


@BOOK.template(1203, "What are the opening hours of {{place}}?", test=True)
def hours(databases: Databases) -> Iterator[Instance]:
    """Read a line."""
    yield from _read(databases, "hours")


@BOOK.template(1204, "Tell me the coordinates of {{place}} in DD format.")
def coordinates(databases: Databases) -> Iterator[Instance]:
    """Read two numbers."""
    for row in places(databases):
        parts = (str(row["latitude"]), str(row["longitude"]))
        yield Instance({"place": row["name"]}, answered(*parts), to_place(row), ", ".join(parts))


@BOOK.template(
    1205,
    "How many minutes does it take to walk from {{start}} to {{end}}? Answer with the number only.",
)
def walking_time(databases: Databases) -> Iterator[Instance]:
    """Ask for a way within a town."""
    for start, end in _pairs(databases, same_town=True):
        answer = str(route(start, end, "foot").minutes)
        values = {"start": start["name"], "end": end["name"]}
        steps = directions(start, end, "foot")
        yield Instance(values, answered_exactly(answer), steps, answer)


@BOOK.template(1206, "Tell me the distance to drive from {{start}} to {{end}}.")
def driving_distance(databases: Databases) -> Iterator[Instance]:
    """Ask for a way between towns."""
    for start, end in _pairs(databases, same_town=False):
        answer = f"{route(start, end, 'car').kilometres}km"
        values = {"start": start["name"], "end": end["name"]}
        yield Instance(values, answered(answer), directions(start, end, "car"), answer)


@BOOK.template(1207, "Show me the way from {{start}} to {{end}} {{travel}}.")
def show_way(databases: Databases) -> Iterator[Instance]:
    """Fill in a form with a choice."""
    for number, (start, end) in enumerate(_pairs(databases, same_town=True)):
        by, how = (("bike", "by bicycle"), ("foot", "on foot"))[number % 2]
        query = urlencode({"from": start["name"], "to": end["name"], "by": by})
        values = {"start": start["name"], "end": end["name"], "travel": how}
        steps = directions(start, end, by)
        yield Instance(values, arrived(f"__MAP__/directions?{query}"), steps)


@BOOK.template(1208, "Open the page of {{place}} on the map.")
def open_place(databases: Databases) -> Iterator[Instance]:
    """Search and open."""
    for row in places(databases):
        where = f"__MAP__/way/{row['id']}"
        yield Instance({"place": row["name"]}, arrived(where), to_place(row))


@BOOK.template(1209, "Which {{kind}} in {{town}} is nearer to {{place}} on foot?", test=True)
def nearer(databases: Databases) -> Iterator[Instance]:
    """Compare two ways."""
    for row in places(databases):
        for kind in ("hotel", "cafe", "pharmacy"):
            query = "SELECT * FROM place WHERE kind=? AND town=? AND id != ?"
            both = rows(databases["map"], query, kind, row["town"], row["id"])
            both.sort(key=lambda other: straight_km(row, other))
            ways = [route(row, other, "foot") for other in both]
            if len(both) != 2 or ways[0].minutes == ways[1].minutes:
                continue
            steps = [*directions(row, both[1], "foot"), *directions(row, both[0], "foot")]
            values = {"kind": kind, "town": row["town"], "place": row["name"]}
            name = both[0]["name"]
            yield Instance(values, answered(name), tuple(steps), name)


def places(databases: Databases) -> list[sqlite3.Row]:
    """All places but the towns themselves."""
    return rows(databases["map"], "SELECT * FROM place WHERE kind != 'town' ORDER BY id")


def to_place(row: sqlite3.Row) -> tuple[Step, ...]:
    """From anywhere on the map to a place's page."""
    return (Fill("Search", row["name"]), Click("button", "Go"), Click("link", row["name"]))


def directions(start: sqlite3.Row, end: sqlite3.Row, by: str) -> tuple[Step, ...]:
    """From anywhere on the map to a way."""
    return (
        Fill("From", start["name"]),
        Fill("To", end["name"]),
        Select("Travel by", TRAVEL[by][0]),
        Click("button", "Find directions"),
    )


def _read(databases: Databases, column: str) -> Iterator[Instance]:
    for row in places(databases):
        text = row[column]
        yield Instance({"place": row["name"]}, answered(text), to_place(row), text)


def _pairs(databases: Databases, *, same_town: bool) -> Iterator[tuple[sqlite3.Row, sqlite3.Row]]:
    every = places(databases)
    for number, start in enumerate(every):
        end = every[(number * 7 + 5) % len(every)] if not same_town else every[number - 1]
        if (start["town"] == end["town"]) == same_town:
            yield start, end
