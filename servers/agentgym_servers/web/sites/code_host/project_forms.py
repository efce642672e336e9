"""What is done to a project: make, fork and star it, save files, invite, plan milestones."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from typing import Final

from agentgym_servers.web.sites.code_host.data import NOW, ROLES
from agentgym_servers.web.sites.code_host.projects import (
    FILE,
    MANAGERS,
    WRITERS,
    by_role,
    file_of,
    home_of,
    members_only,
    page,
    refusal,
)
from agentgym_servers.web.sites.pages import Router, Visit, redirect
from agentgym_servers.web.sites.site import Response

ROUTER: Final = Router()

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}")

_PATH: Final = re.compile(r"(?:(?!\.+(?:/|$))[\w.-]{1,60}(?:/(?!$)|$)){1,3}", re.ASCII)

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


@ROUTER.get("/projects/new")
@members_only
def new_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of a new project."""
    return page(visit, "new_project.html", problem="")


@ROUTER.post("/projects")
@members_only
def create(visit: Visit, who: sqlite3.Row) -> Response:
    """Make a project of the reader's own, and go to it."""
    name = visit.sent("project[name]")
    visibility = "Private" if visit.sent("project[visibility]") == "Private" else "Public"
    taken = "SELECT 1 FROM project WHERE space=? AND name=?"
    if not _NAME.fullmatch(name) or visit.one(taken, who["username"], name):
        problem = "A name has letters, digits, - _ and dots, and is not taken."
        return page(visit, "new_project.html", problem=problem)
    number = _make(visit, who, name, visit.sent("project[description]"), visibility)
    if visit.sent("project[readme]"):
        visit.run("INSERT INTO file VALUES(?,?,?)", number, "README.md", f"# {name}\n")
        _record(visit, number, who, "Initial commit")
    return redirect(f"/{who['username']}/{name}")


@ROUTER.post("/{space}/{name}/-/forks")
@by_role()
def fork(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Copy a project into the reader's own space, and go there."""
    taken = "SELECT 1 FROM project WHERE space=? AND name=?"
    if visit.one(taken, who["username"], project["name"]):
        return refusal(visit, 400, "There is a project of this name in your space.")
    shown = (project["name"], project["description"], project["visibility"])
    number = _make(visit, who, *shown)
    copied = "INSERT INTO file SELECT ?, path, text FROM file WHERE project_id=?"
    visit.run(copied, number, project["id"])
    visit.run("UPDATE project SET forks=forks+1 WHERE id=?", project["id"])
    return redirect(f"/{who['username']}/{project['name']}")


@ROUTER.post("/{space}/{name}/-/toggle_star")
@by_role()
def toggle_star(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Star a project, or no longer."""
    pair = (who["id"], project["id"])
    had = visit.one("SELECT 1 FROM star WHERE user_id=? AND project_id=?", *pair)
    if had:
        visit.run("DELETE FROM star WHERE user_id=? AND project_id=?", *pair)
    else:
        visit.run("INSERT INTO star VALUES(?,?)", *pair)
    visit.run("UPDATE project SET stars=stars+? WHERE id=?", -1 if had else 1, project["id"])
    return redirect(home_of(project))


@ROUTER.get("/{space}/{name}/-/new/{branch}")
@by_role(*WRITERS)
def new_file_form(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """The form of a new file."""
    return page(visit, "file_form.html", project=project, file=None)


@ROUTER.get(*(f"/{{space}}/{{name}}/-/edit/{{branch}}/{path}" for path in FILE))
@by_role(*WRITERS)
def file_form(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """The form of a file."""
    return page(visit, "file_form.html", project=project, file=file_of(visit, project))


@ROUTER.post("/{space}/{name}/-/files")
@by_role(*WRITERS)
def save_file(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Write a file and a commit, and go to the file."""
    path = visit.sent("file_name")
    if not _PATH.fullmatch(path):
        return refusal(visit, 400, "This is not a path of at most three names.")
    values = (project["id"], path, visit.sent("file_text"))
    visit.run("INSERT OR REPLACE INTO file VALUES(?,?,?)", *values)
    _record(visit, project["id"], who, visit.sent("commit_message") or f"Update {path}")
    return redirect(f"{home_of(project)}/-/blob/main/{path}")


@ROUTER.post("/{space}/{name}/-/project_members")
@by_role(*MANAGERS)
def invite(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Take somebody in, or change their role; the last owner stays one."""
    user = visit.one("SELECT * FROM user WHERE username=?", visit.sent("username"))
    role = visit.sent("role")
    if user is None or role not in ROLES or user["id"] == who["id"]:
        return refusal(visit, 400, "An invitation needs another person's username and a role.")
    values = (project["id"], user["id"], role)
    visit.run("INSERT OR REPLACE INTO member VALUES(?,?,?)", *values)
    return redirect(f"{home_of(project)}/-/project_members")


@ROUTER.get("/{space}/{name}/-/milestones/new")
@by_role(*WRITERS)
def milestone_form(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """The form of a new milestone."""
    return page(visit, "new_milestone.html", project=project)


@ROUTER.post("/{space}/{name}/-/milestones")
@by_role(*WRITERS)
def create_milestone(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Set a milestone, and go to it."""
    title = visit.sent("milestone[title]")[:200]
    dates = (visit.sent("milestone[start_date]"), visit.sent("milestone[due_date]"))
    if not title or any(date and not _DATE.fullmatch(date) for date in dates):
        return refusal(visit, 400, "A milestone needs a title, and dates such as 2026-07-15.")
    query = "SELECT coalesce(max(iid), 0) + 1 AS iid FROM milestone WHERE project_id=?"
    last = visit.one(query, project["id"])
    iid = last["iid"] if last else 1
    statement = "INSERT INTO milestone(project_id, iid, title, start, due) VALUES(?,?,?,?,?)"
    visit.run(statement, project["id"], iid, title, *dates)
    return redirect(f"{home_of(project)}/-/milestones/{iid}")


def _make(visit: Visit, who: sqlite3.Row, name: str, description: str, visibility: str) -> int:
    values = (who["username"], name, description, visibility, NOW)
    number = visit.run(
        "INSERT INTO project(space, name, description, visibility, stars, forks, created)"
        " VALUES(?,?,?,?,0,0,?)",
        *values,
    )
    visit.run("INSERT INTO member VALUES(?,?,'Owner')", number, who["id"])
    visit.run("INSERT INTO branch VALUES(?,'main')", number)
    visit.database.execute(
        "INSERT INTO label SELECT DISTINCT ?, name FROM label ORDER BY name", (number,)
    )
    return number


def _record(visit: Visit, project: int, who: sqlite3.Row, title: str) -> None:
    count = visit.one("SELECT count(*) AS n FROM change")
    sha = hashlib.sha1(f"{project}/{count['n'] if count else 0}".encode()).hexdigest()
    statement = "INSERT INTO change(project_id, sha, author_id, title, created) VALUES(?,?,?,?,?)"
    visit.run(statement, project, sha, who["id"], title[:300], NOW)
