"""The page from which all embedded sites are reached, and the page of passwords."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.accounts import ACCOUNTS
from agentgym_servers.web.pages import Router, Visit, make_database, render
from agentgym_servers.web.site import HOSTS, Request, Response

ROUTER: Final = Router()
NAMES: Final = {
    "shopping": "Shop",
    "shopping_admin": "Shop administration",
    "reddit": "Forum",
    "gitlab": "Code host",
    "wikipedia": "Encyclopedia",
    "map": "Map",
}
_SCHEMA: Final = """
CREATE TABLE password(site TEXT PRIMARY KEY, username TEXT, password TEXT);
"""
_PASSWORDS: Final = tuple((NAMES[site], *account) for site, account in ACCOUNTS.items())


class Homepage:
    """Links to the other sites."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """The passwords."""
        return make_database(_SCHEMA, {"password": _PASSWORDS})

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        """Answer a request."""
        found = ROUTER.answer(database, request)
        return found or Response(render(__package__, "missing.html"), 404)


def logged_in_cookies(account: str) -> dict[str, str]:
    """None: nobody logs in to the homepage."""
    return {}


@ROUTER.get("/")
def front(visit: Visit) -> Response:
    """The sites."""
    sites = [(name, HOSTS[site] + "/") for site, name in NAMES.items()]
    return Response(render(__package__, "homepage.html", sites=sites))


@ROUTER.get("/password.html")
def passwords(visit: Visit) -> Response:
    """Who one is on each site."""
    rows = visit.all("SELECT * FROM password")
    return Response(render(__package__, "passwords.html", rows=rows))


@ROUTER.get("/links/{number}")
def link(visit: Visit) -> Response:
    """Where the forum's submissions of links lead."""
    return Response(render(__package__, "link.html", number=visit.number("number")))
