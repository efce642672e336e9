"""The code host's pages of a project to read: files, commits, branches, members, milestones."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable
from typing import Final

from agentgym_servers.web.sites.code_host.data import NOW, ROLES
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
from agentgym_servers.web.tasks.scripts import Click, Fill, Step
from agentgym_servers.web.tasks.task_forms import Databases, rows

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


def projects(databases: Databases) -> list[sqlite3.Row]:
    """Every project."""
    return rows(databases["gitlab"], "SELECT * FROM project ORDER BY id")


def place(row: sqlite3.Row) -> str:
    """A project's name as people write it."""
    return f"{row['space']}/{row['name']}"


def url(row: sqlite3.Row, path: str = "") -> str:
    """A page of a project, or its front page."""
    return f"__GITLAB__/{place(row)}/-/{path}" if path else f"__GITLAB__/{place(row)}"


def project(row: sqlite3.Row) -> tuple[Step, ...]:
    """From anywhere to a project."""
    return (
        Fill("Search projects", row["name"]),
        Click("button", "Search"),
        Click("link", place(row)),
    )


def issue(row: sqlite3.Row, one: sqlite3.Row) -> tuple[Step, ...]:
    """From anywhere to an issue, open or closed."""
    listed = (Click("link", "Issues"), Click("link", "All"))
    return (*project(row), *listed, Click("link", one["title"]))


def merge_request(row: sqlite3.Row, one: sqlite3.Row) -> tuple[Step, ...]:
    """From anywhere to a merge request, open or merged."""
    listed = (Click("link", "Merge requests"), Click("link", "All"))
    return (*project(row), *listed, Click("link", one["title"]))


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


FORM_ROUTER: Final = Router()

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}")

_PATH: Final = re.compile(r"(?:(?!\.+(?:/|$))[\w.-]{1,60}(?:/(?!$)|$)){1,3}", re.ASCII)

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


@FORM_ROUTER.get("/projects/new")
@members_only
def new_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of a new project."""
    return page(visit, "new_project.html", problem="")


@FORM_ROUTER.post("/projects")
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


@FORM_ROUTER.post("/{space}/{name}/-/forks")
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


@FORM_ROUTER.post("/{space}/{name}/-/toggle_star")
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


@FORM_ROUTER.get("/{space}/{name}/-/new/{branch}")
@by_role(*WRITERS)
def new_file_form(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """The form of a new file."""
    return page(visit, "file_form.html", project=project, file=None)


@FORM_ROUTER.get(*(f"/{{space}}/{{name}}/-/edit/{{branch}}/{path}" for path in FILE))
@by_role(*WRITERS)
def file_form(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """The form of a file."""
    return page(visit, "file_form.html", project=project, file=file_of(visit, project))


@FORM_ROUTER.post("/{space}/{name}/-/files")
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


@FORM_ROUTER.post("/{space}/{name}/-/project_members")
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


@FORM_ROUTER.get("/{space}/{name}/-/milestones/new")
@by_role(*WRITERS)
def milestone_form(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """The form of a new milestone."""
    return page(visit, "new_milestone.html", project=project)


@FORM_ROUTER.post("/{space}/{name}/-/milestones")
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
