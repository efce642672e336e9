"""The code host as a site: its database and who answers a request."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.sites.code_host import (
    data,
    issues,
    merge_requests,
    people,
    project_forms,
    projects,
)
from agentgym_servers.web.sites.code_host.projects import COOKIE, missing
from agentgym_servers.web.sites.pages import Visit
from agentgym_servers.web.sites.site import Request, Response

_ROUTERS: Final = (
    people.ROUTER,
    project_forms.ROUTER,
    issues.ROUTER,
    merge_requests.ROUTER,
    projects.ROUTER,
)


class CodeHost:
    """Projects, issues, merge requests and members, at WebArena's paths of its code host."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """The code host as every episode begins with it."""
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
