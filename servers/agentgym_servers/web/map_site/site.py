"""The map as a site: search, places, and directions between them."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.map_site import data
from agentgym_servers.web.map_site.routes import TRAVEL, Route, route
from agentgym_servers.web.pages import Router, Visit, render
from agentgym_servers.web.site import Request, Response

ROUTER: Final = Router()
MOST: Final = 50
_TEXT: Final = "lower(name || ' ' || kind || ' ' || street || ' ' || postcode || ' ' || town)"


class Map:
    """Places of an invented country, at the paths of WebArena's map."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """The map as every episode begins with it."""
        return data.make_database(seed)

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        """Answer a request."""
        visit = Visit(database, request)
        return ROUTER.answer(database, request) or _page(visit, "missing.html", 404)


def logged_in_cookies(account: str) -> dict[str, str]:
    """None: nobody logs in to the map."""
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
    words = visit.asked("query")[:200]
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
    by = visit.asked("by") if visit.asked("by") in TRAVEL else "car"
    asked = (visit.asked("from")[:200], visit.asked("to")[:200])
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
