"""What every page of the code host has: who reads it, which project it is of, and refusals."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from agentgym_servers.web.pages import Handler, Visit, redirect, render
from agentgym_servers.web.readers import Act, logged_in, only_logged_in
from agentgym_servers.web.site import Response

COOKIE: Final = "_gitlab_session"
WRITERS: Final = ("Developer", "Maintainer", "Owner")
MANAGERS: Final = ("Maintainer", "Owner")
ProjectAct = Callable[[Visit, sqlite3.Row, sqlite3.Row], Response]


def reader(visit: Visit) -> sqlite3.Row | None:
    """Who is logged in."""
    return logged_in(visit, COOKIE)


def page(visit: Visit, template: str, /, **values: object) -> Response:
    """A page within the code host's frame."""
    who, project = reader(visit), values.pop("project", None)
    role = role_of(visit, project, who) if who and isinstance(project, sqlite3.Row) else ""
    body = render(__package__, template, who=who, project=project, role=role, **values)
    return Response(body)


def refusal(visit: Visit, status: int, reason: str) -> Response:
    """A page that says why not."""
    return Response(page(visit, "refusal.html", reason=reason).body, status)


def missing(visit: Visit) -> Response:
    """There is no such page."""
    return refusal(visit, 404, "Page Not Found")


def members_only(act: Act) -> Handler:
    """Send who is not logged in to the log-in page."""
    return only_logged_in(act, COOKIE, "/users/sign_in")


def of_project(act: Act) -> Handler:
    """Find the project that the path names; one's own is all one sees of the private."""

    def found(visit: Visit) -> Response:
        project = project_of(visit)
        return act(visit, project) if project else missing(visit)

    return found


def by_role(*roles: str) -> Callable[[ProjectAct], Handler]:
    """Let only these roles of a project act in it; with none given, whoever is logged in."""

    def guard(act: ProjectAct) -> Handler:
        def guarded(visit: Visit) -> Response:
            who, project = reader(visit), project_of(visit)
            if who is None:
                return redirect("/users/sign_in")
            if project is None:
                return missing(visit)
            if roles and role_of(visit, project, who) not in roles:
                return refusal(visit, 403, f"This takes one of the roles {', '.join(roles)}.")
            return act(visit, project, who)

        return guarded

    return guard


def project_of(visit: Visit) -> sqlite3.Row | None:
    """The project that the path names, if the reader may see it."""
    names = (visit.argument("space"), visit.argument("name"))
    project = visit.one("SELECT * FROM project WHERE space=? AND name=?", *names)
    if project is None or project["visibility"] == "Public":
        return project
    who = reader(visit)
    return project if who and role_of(visit, project, who) else None


def role_of(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> str:
    """Somebody's role in a project, or nothing."""
    query = "SELECT role FROM member WHERE project_id=? AND user_id=?"
    row = visit.one(query, project["id"], who["id"])
    return str(row["role"]) if row else ""


def home_of(project: sqlite3.Row) -> str:
    """A project's path."""
    return f"/{project['space']}/{project['name']}"


def notes_on(visit: Visit, kind: str, target: sqlite3.Row) -> list[sqlite3.Row]:
    """What was said about an issue or a merge request."""
    return visit.all(
        "SELECT n.*, u.username FROM note n JOIN user u ON u.id=n.user_id"
        " WHERE n.kind=? AND n.target_id=? ORDER BY n.id",
        kind,
        target["id"],
    )
