"""Who reads a page of a site whose log-ins are rows of `login` and whose people are of `user`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeAlias

from agentgym_servers.web.pages import Handler, Visit, redirect
from agentgym_servers.web.site import Response

Act: TypeAlias = Callable[[Visit, sqlite3.Row], Response]


def logged_in(visit: Visit, cookie: str) -> sqlite3.Row | None:
    """The user whose log-in a cookie holds."""
    token = visit.cookie(cookie)
    if not token:
        return None
    return visit.one("SELECT u.* FROM login l JOIN user u ON u.id=l.user_id WHERE token=?", token)


def only_logged_in(act: Act, cookie: str, sign_in: str) -> Handler:
    """Send who is not logged in to the log-in page at `sign_in`."""

    def guarded(visit: Visit) -> Response:
        who = logged_in(visit, cookie)
        return act(visit, who) if who else redirect(sign_in)

    return guarded
