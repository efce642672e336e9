"""Ways between two places of the map: how far, how long, and by which steps."""

from __future__ import annotations

import math
import sqlite3
from typing import Final

import msgspec

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
