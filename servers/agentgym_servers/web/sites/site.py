"""What an embedded site is: a function of a request and a database that one episode alone has."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec


class Account(NamedTuple):
    """Who the agent is on a site."""

    username: str
    password: str


ACCOUNTS: Final[Mapping[str, Account]] = {
    "shopping": Account("emma.lopez@gmail.com", "Password.123"),
    "shopping_admin": Account("admin", "admin1234"),
    "reddit": Account("MarvelsGrantMan136", "test1234"),
    "gitlab": Account("byteblaze", "hello1234"),
}
"""WebArena's name of a site -> the account there."""


class Town(NamedTuple):
    """A town, its region, and where it lies."""

    name: str
    region: str
    latitude: float
    longitude: float


TOWNS: Final[tuple[Town, ...]] = (
    Town("Aldermouth", "Northmarch", 45.912, -30.844),
    Town("Brackwater", "Northmarch", 45.731, -30.317),
    Town("Cindral", "Highmoor", 45.488, -29.902),
    Town("Dunvarra", "Highmoor", 45.264, -30.233),
    Town("Eskerby", "Lakelands", 45.107, -29.551),
    Town("Fennimore", "Lakelands", 44.953, -29.874),
    Town("Galloden", "Eastfold", 45.386, -28.957),
    Town("Hollin Quay", "Eastfold", 45.149, -28.702),
    Town("Ironbeck", "Saltcoast", 44.671, -30.418),
    Town("Jarrow Vale", "Saltcoast", 44.528, -30.861),
    Town("Kestermere", "Southdown", 44.392, -29.643),
    Town("Lornhaven", "Southdown", 44.215, -29.188),
)

REGIONS: Final = tuple(dict.fromkeys(town.region for town in TOWNS))

HOSTS: Final[Mapping[str, str]] = {
    "shopping": "http://shop.test",
    "shopping_admin": "http://admin.test/admin",
    "reddit": "http://forum.test",
    "gitlab": "http://code.test",
    "wikipedia": "http://wiki.test",
    "map": "http://map.test",
    "homepage": "http://home.test",
}
"""WebArena's name of a site -> the address of ours, without a slash at the end."""


class Request(msgspec.Struct, frozen=True):
    """A request for a page, or a form that is sent."""

    method: str
    """`GET` or `POST`."""
    host: str
    """Such as `shop.test`."""
    path: str
    """Decoded, such as `/p/4`."""
    query: Mapping[str, Sequence[str]] = {}
    form: Mapping[str, Sequence[str]] = {}
    cookies: Mapping[str, str] = {}
    """Of this host."""


class Response(msgspec.Struct, frozen=True):
    """A page, or where to go instead."""

    body: str = ""
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    location: str | None = None
    """With a status of 302 or 303: an absolute URL, or a path of the same host."""
    cookies: Mapping[str, str | None] = {}
    """Set on this host; None takes one away."""


class Site(Protocol):
    """One site. It has no state: what changes is in the database."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """The site's data as every episode begins with it; equal for equal seeds."""
        ...

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        """Answer a request; never raises for what a client may send."""
        ...


class SiteSession:
    """The sites of one episode: each database is restored from its blob on its first request.

    Any thread may ask; one request is answered at a time.
    """

    def __init__(self, sites: Mapping[str, Site], blobs: Mapping[Site, bytes]) -> None:
        """`sites` by host; two hosts may share one site, and so its data."""
        self._sites = sites
        self._blobs = blobs
        self._databases: dict[int, sqlite3.Connection] = {}
        self._lock = threading.Lock()

    def knows(self, host: str) -> bool:
        """Whether a host is that of a site."""
        return host in self._sites

    def answer(self, request: Request) -> Response:
        """The answer of the host's site; a host that is not there is 403."""
        site = self._sites.get(request.host)
        if site is None:
            return Response("<html><body><p>This host is out of bounds.</p></body></html>", 403)
        with self._lock:
            return site.answer(self.database(site), request)

    def database(self, site: Site) -> sqlite3.Connection:
        """The episode's own database of a site."""
        database = self._databases.get(id(site))
        if database is None:
            database = sqlite3.connect(":memory:", check_same_thread=False)
            database.deserialize(self._blobs[site])
            database.row_factory = sqlite3.Row
            self._databases[id(site)] = database
        return database

    def close(self) -> None:
        """Close the databases."""
        with self._lock:
            for database in self._databases.values():
                database.close()
            self._databases.clear()


def host_of(site: str) -> str:
    """The host of one of WebArena's sites, by its name there."""
    return urlsplit(HOSTS[site]).netloc
