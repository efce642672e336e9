"""What every page of the forum has: who reads it, which boards they follow, and refusals."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.pages import Handler, Visit, render
from agentgym_servers.web.readers import Act, logged_in, only_logged_in
from agentgym_servers.web.site import Response

COOKIE: Final = "PHPSESSID"


def reader(visit: Visit) -> sqlite3.Row | None:
    """Who is logged in."""
    return logged_in(visit, COOKIE)


def page(visit: Visit, template: str, /, **values: object) -> Response:
    """A page within the forum's frame."""
    who = reader(visit)
    followed = visit.all(
        "SELECT f.name FROM subscription s JOIN forum f ON f.id=s.forum_id"
        " WHERE s.user_id=? ORDER BY f.name",
        who["id"] if who else 0,
    )
    body = render(__package__, template, who=who, followed=followed, **values)
    return Response(body)


def refusal(visit: Visit, status: int, reason: str) -> Response:
    """A page that says why not."""
    return Response(page(visit, "refusal.html", reason=reason).body, status)


def missing(visit: Visit) -> Response:
    """There is no such page."""
    return refusal(visit, 404, "There is nothing here.")


def members_only(act: Act) -> Handler:
    """Send who is not logged in to the log-in page."""
    return only_logged_in(act, COOKIE, "/login")
