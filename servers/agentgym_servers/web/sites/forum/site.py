"""The forum as a site: its database and who answers a request."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.sites.forum import data, reading, writing
from agentgym_servers.web.sites.forum.reading import COOKIE, missing
from agentgym_servers.web.sites.pages import Visit
from agentgym_servers.web.sites.site import Request, Response

_ROUTERS: Final = (writing.ROUTER, reading.ROUTER)


class Forum:
    """Boards, submissions, threads and votes, at WebArena's paths of its forum."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """The forum as every episode begins with it."""
        return data.make_database(seed)

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        """Answer a request."""
        for router in _ROUTERS:
            if (response := router.answer(database, request)) is not None:
                return response
        return missing(Visit(database, request))


def logged_in_cookies(account: str) -> dict[str, str]:
    """The cookies of an account that is logged in from the start."""
    return {COOKIE: data.token_of(account)}
