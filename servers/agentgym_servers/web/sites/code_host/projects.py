"""The code host's pages of a project to read: files, commits, branches, members, milestones."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from agentgym_servers.web.sites.code_host.data import ROLES
from agentgym_servers.web.sites.pages import (
    Act,
    Handler,
    Router,
    Visit,
    logged_in,
    only_logged_in,
    redirect,
    render,
    whole,
)
from agentgym_servers.web.sites.site import Response

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
    """A page with the reason why not."""
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
    """Let only these roles of a project act in it; with none given, any logged-in user."""

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
    """A user's role in a project, or nothing."""
    query = "SELECT role FROM member WHERE project_id=? AND user_id=?"
    row = visit.one(query, project["id"], who["id"])
    return str(row["role"]) if row else ""


def home_of(project: sqlite3.Row) -> str:
    """A project's path."""
    return f"/{project['space']}/{project['name']}"


def notes_on(visit: Visit, kind: str, target: sqlite3.Row) -> list[sqlite3.Row]:
    """The comments on an issue or a merge request."""
    return visit.all(
        "SELECT n.*, u.username FROM note n JOIN user u ON u.id=n.user_id"
        " WHERE n.kind=? AND n.target_id=? ORDER BY n.id",
        kind,
        target["id"],
    )


ROUTER: Final = Router()

PER_PAGE: Final = 40

FILE: Final = ("{file}", "{folder}/{file}", "{above}/{folder}/{file}")
"""The depths of a path within a project."""


@ROUTER.get("/{space}/{name}")
@of_project
def overview(visit: Visit, project: sqlite3.Row) -> Response:
    """A project's front page."""
    who = reader(visit)
    readme = visit.one(
        "SELECT text FROM file WHERE project_id=? AND path='README.md'", project["id"]
    )
    mine = "SELECT 1 FROM star WHERE user_id=? AND project_id=?"
    starred = visit.one(mine, who["id"] if who else 0, project["id"]) is not None
    files = visit.all("SELECT path FROM file WHERE project_id=? ORDER BY path", project["id"])
    text = readme["text"] if readme else ""
    return page(visit, "project.html", project=project, readme=text, starred=starred, files=files)


@ROUTER.get("/{space}/{name}/-/commits", "/{space}/{name}/-/commits/{branch}")
@of_project
def commits(visit: Visit, project: sqlite3.Row) -> Response:
    """The commits of everybody or of one author, newest first."""
    query = (
        "SELECT c.*, u.username, u.name AS author FROM change c JOIN user u ON u.id=c.author_id"
        " WHERE c.project_id=?"
    )
    values: list[object] = [project["id"]]
    if author := visit.query("author"):
        query += " AND (u.name=? OR u.username=?)"
        values += [author, author]
    offset = ((whole(visit.query("page"), 1, 1000) or 1) - 1) * PER_PAGE
    order = f"ORDER BY c.created DESC, c.id DESC LIMIT {PER_PAGE} OFFSET ?"
    rows = visit.all(f"{query} {order}", *values, offset)
    people = visit.all(
        "SELECT DISTINCT u.name FROM change c JOIN user u ON u.id=c.author_id"
        " WHERE c.project_id=? ORDER BY u.name",
        project["id"],
    )
    return page(visit, "commits.html", project=project, rows=rows, people=people, author=author)


@ROUTER.get("/{space}/{name}/-/graphs/{branch}")
@of_project
def contributors(visit: Visit, project: sqlite3.Row) -> Response:
    """Who has committed how much."""
    rows = visit.all(
        "SELECT u.*, count(*) AS commits FROM change c JOIN user u ON u.id=c.author_id"
        " WHERE c.project_id=? GROUP BY u.id ORDER BY commits DESC, u.name",
        project["id"],
    )
    return page(visit, "contributors.html", project=project, rows=rows)


@ROUTER.get("/{space}/{name}/-/branches")
@of_project
def branches(visit: Visit, project: sqlite3.Row) -> Response:
    """The branches."""
    rows = visit.all("SELECT name FROM branch WHERE project_id=? ORDER BY name", project["id"])
    return page(visit, "branches.html", project=project, rows=rows)


@ROUTER.get("/{space}/{name}/-/tree/{branch}")
@of_project
def tree(visit: Visit, project: sqlite3.Row) -> Response:
    """The files."""
    files = visit.all("SELECT path FROM file WHERE project_id=? ORDER BY path", project["id"])
    return page(visit, "tree.html", project=project, files=files)


@ROUTER.get(*(f"/{{space}}/{{name}}/-/blob/{{branch}}/{path}" for path in FILE))
@of_project
def blob(visit: Visit, project: sqlite3.Row) -> Response:
    """One file."""
    file = file_of(visit, project)
    if file is None:
        return missing(visit)
    return page(visit, "blob.html", project=project, file=file)


@ROUTER.get(*(f"/{{space}}/{{name}}/-/raw/{{branch}}/{path}" for path in FILE))
@of_project
def raw(visit: Visit, project: sqlite3.Row) -> Response:
    """One file as plain text."""
    file = file_of(visit, project)
    if file is None:
        return missing(visit)
    return Response(file["text"], content_type="text/plain; charset=utf-8")


@ROUTER.get("/{space}/{name}/-/project_members")
@of_project
def members(visit: Visit, project: sqlite3.Row) -> Response:
    """Who works on the project, in which role."""
    rows = visit.all(
        "SELECT u.*, m.role FROM member m JOIN user u ON u.id=m.user_id WHERE m.project_id=?"
        " ORDER BY u.name",
        project["id"],
    )
    return page(visit, "members.html", project=project, rows=rows, roles=ROLES)


@ROUTER.get("/{space}/{name}/-/milestones")
@of_project
def milestones(visit: Visit, project: sqlite3.Row) -> Response:
    """The milestones."""
    rows = visit.all("SELECT * FROM milestone WHERE project_id=? ORDER BY due, iid", project["id"])
    return page(visit, "milestones.html", project=project, rows=rows)


@ROUTER.get("/{space}/{name}/-/milestones/{iid}")
@of_project
def milestone(visit: Visit, project: sqlite3.Row) -> Response:
    """One milestone and its issues."""
    query = "SELECT * FROM milestone WHERE project_id=? AND iid=?"
    row = visit.one(query, project["id"], visit.number("iid"))
    if row is None:
        return missing(visit)
    issues = visit.all("SELECT * FROM issue WHERE milestone_id=? ORDER BY iid", row["id"])
    return page(visit, "milestone.html", project=project, row=row, issues=issues)


def file_of(visit: Visit, project: sqlite3.Row) -> sqlite3.Row | None:
    """The file that the path names."""
    names = [visit.argument(part) for part in ("above", "folder", "file")]
    path = "/".join(name for name in names if name)
    return visit.one("SELECT * FROM file WHERE project_id=? AND path=?", project["id"], path)
