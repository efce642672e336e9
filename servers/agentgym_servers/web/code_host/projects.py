"""The code host's pages of a project to read: files, commits, branches, members, milestones."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.code_host.data import ROLES
from agentgym_servers.web.code_host.frame import missing, of_project, page, reader
from agentgym_servers.web.pages import Router, Visit, whole
from agentgym_servers.web.site import Response

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
    if author := visit.asked("author"):
        query += " AND (u.name=? OR u.username=?)"
        values += [author, author]
    offset = ((whole(visit.asked("page"), 1, 1000) or 1) - 1) * PER_PAGE
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
