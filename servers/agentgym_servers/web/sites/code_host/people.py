"""The code host's pages of people: log-in, profile, dashboards, what they star and follow."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.sites.code_host.data import token_of
from agentgym_servers.web.sites.code_host.projects import COOKIE, members_only, missing, page
from agentgym_servers.web.sites.pages import Router, Visit, redirect
from agentgym_servers.web.sites.site import Response

ROUTER: Final = Router()
VISIBLE: Final = (
    "(p.visibility = 'Public' OR EXISTS(SELECT 1 FROM member m"
    " WHERE m.project_id = p.id AND m.user_id = ?))"
)
SORTS: Final = {
    "stars_desc": "p.stars DESC, p.id",
    "name_asc": "p.name, p.id",
    "latest_activity_desc": "p.created DESC, p.id DESC",
}


@ROUTER.get("/users/sign_in")
def sign_in_form(visit: Visit) -> Response:
    """The log-in form."""
    return page(visit, "sign_in.html", wrong=False)


@ROUTER.post("/users/sign_in")
def sign_in(visit: Visit) -> Response:
    """Log in, and go to the front page."""
    name, password = visit.sent("user[login]"), visit.sent("user[password]")
    query = "SELECT * FROM user WHERE (username=? OR email=?) AND password=?"
    user = visit.one(query, name, name, password)
    if user is None:
        return page(visit, "sign_in.html", wrong=True)
    token = token_of(user["username"])
    visit.run("INSERT OR IGNORE INTO login VALUES(?,?)", token, user["id"])
    return redirect("/", {COOKIE: token})


@ROUTER.post("/users/sign_out")
def sign_out(visit: Visit) -> Response:
    """Log out."""
    visit.run("DELETE FROM login WHERE token=?", visit.cookie(COOKIE))
    return redirect("/users/sign_in", {COOKIE: None})


@ROUTER.get("/", "/dashboard", "/dashboard/projects")
@members_only
def projects(visit: Visit, who: sqlite3.Row) -> Response:
    """The projects of which the reader is a member."""
    query = (
        "SELECT p.*, m.role FROM project p JOIN member m ON m.project_id=p.id"
        " WHERE m.user_id=? ORDER BY p.space, p.name"
    )
    return page(visit, "projects.html", heading="Your projects", rows=visit.all(query, who["id"]))


@ROUTER.get("/explore", "/explore/projects", "/search")
def explore(visit: Visit) -> Response:
    """All projects that the reader may see, or those with a word in name or description."""
    query = f"SELECT p.* FROM project p WHERE {VISIBLE}"
    who_id = _reader_id(visit)
    word = (visit.query("search") or visit.query("name"))[:200]
    values: list[object] = [who_id]
    if word:
        query += " AND instr(lower(p.name || ' ' || p.description), lower(?)) > 0"
        values.append(word)
    order = SORTS.get(visit.query("sort"), SORTS["name_asc"])
    rows = visit.all(f"{query} ORDER BY {order}", *values)
    return page(visit, "projects.html", heading="Explore projects", rows=rows)


@ROUTER.get("/dashboard/todos")
@members_only
def todos(visit: Visit, who: sqlite3.Row) -> Response:
    """The reader's list of things to do."""
    query = "SELECT * FROM todo WHERE user_id=? AND done=0 ORDER BY id DESC"
    return page(visit, "todos.html", rows=visit.all(query, who["id"]))


@ROUTER.post("/dashboard/todos/{id}/done")
@members_only
def todo_done(visit: Visit, who: sqlite3.Row) -> Response:
    """Take a to-do off the list."""
    values = (visit.number("id"), who["id"])
    visit.run("UPDATE todo SET done=1 WHERE id=? AND user_id=?", *values)
    return redirect("/dashboard/todos")


@ROUTER.get("/dashboard/issues")
@members_only
def issues(visit: Visit, who: sqlite3.Row) -> Response:
    """Issues by assignee or author, over all projects."""
    return _dashboard(visit, "issue", ("assignee_username", "author_username"))


@ROUTER.get("/dashboard/merge_requests")
@members_only
def merge_requests(visit: Visit, who: sqlite3.Row) -> Response:
    """Merge requests by assignee, reviewer or author, over all projects."""
    names = ("assignee_username", "reviewer_username", "author_username")
    return _dashboard(visit, "merge_request", names)


@ROUTER.get("/-/profile")
@members_only
def profile_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of one's own profile."""
    return page(visit, "profile_form.html")


@ROUTER.post("/-/profile")
@members_only
def profile(visit: Visit, who: sqlite3.Row) -> Response:
    """Change one's own profile, and see it."""
    texts = [visit.sent(f"user[{field}]")[:500] for field in ("name", "status", "website", "bio")]
    texts[0] = texts[0] or who["name"]
    statement = "UPDATE user SET name=?, status=?, website=?, bio=? WHERE id=?"
    visit.run(statement, *texts, who["id"])
    return redirect(f"/{who['username']}")


@ROUTER.get("/users/{username}/starred")
def starred(visit: Visit) -> Response:
    """The projects that a user has starred."""
    query = (
        "SELECT p.* FROM project p JOIN star s ON s.project_id=p.id JOIN user u ON u.id=s.user_id"
        f" WHERE u.username=? AND {VISIBLE} ORDER BY p.name"
    )
    rows = visit.all(query, visit.argument("username"), _reader_id(visit))
    return page(visit, "projects.html", heading="Starred projects", rows=rows)


@ROUTER.get("/users/{username}/following")
def following(visit: Visit) -> Response:
    """Whom a user follows."""
    user = visit.one("SELECT * FROM user WHERE username=?", visit.argument("username"))
    if user is None:
        return missing(visit)
    query = (
        "SELECT u.* FROM follow f JOIN user u ON u.id=f.followed_id WHERE f.user_id=?"
        " ORDER BY u.username"
    )
    return page(visit, "following.html", user=user, rows=visit.all(query, user["id"]))


@ROUTER.post("/users/{username}/follow", "/users/{username}/unfollow")
@members_only
def follow(visit: Visit, who: sqlite3.Row) -> Response:
    """Follow a user, or stop following."""
    user = visit.one("SELECT * FROM user WHERE username=?", visit.argument("username"))
    if user is None:
        return missing(visit)
    if visit.request.path.rstrip("/").endswith("/follow"):
        visit.run("INSERT OR IGNORE INTO follow VALUES(?,?)", who["id"], user["id"])
    else:
        statement = "DELETE FROM follow WHERE user_id=? AND followed_id=?"
        visit.run(statement, who["id"], user["id"])
    return redirect(f"/{user['username']}")


@ROUTER.get("/{space}")
def space(visit: Visit) -> Response:
    """A person's or a group's page, and its projects."""
    name = visit.argument("space")
    user = visit.one(
        "SELECT u.*, EXISTS(SELECT 1 FROM follow f WHERE f.user_id=? AND f.followed_id=u.id)"
        " AS followed FROM user u WHERE username=?",
        _reader_id(visit),
        name,
    )
    query = f"SELECT p.* FROM project p WHERE p.space=? AND {VISIBLE} ORDER BY p.name"
    rows = visit.all(query, name, _reader_id(visit))
    if user is None and not rows:
        return missing(visit)
    if user is not None:
        return page(visit, "profile.html", user=user, rows=rows)
    return page(visit, "projects.html", heading=rows[0]["space"], rows=rows)


def _reader_id(visit: Visit) -> int:
    query = "SELECT user_id FROM login WHERE token=?"
    row = visit.one(query, visit.cookie(COOKIE))
    return int(row["user_id"]) if row else 0


def _dashboard(visit: Visit, kind: str, fields: tuple[str, ...]) -> Response:
    query = (
        f"SELECT i.*, p.space, p.name, u.username AS author FROM {kind} i"
        f" JOIN project p ON p.id=i.project_id JOIN user u ON u.id=i.author_id WHERE {VISIBLE}"
    )
    values: list[object] = [_reader_id(visit)]
    for field in fields:
        if name := visit.query(field):
            column = field.replace("_username", "_id")
            query += f" AND i.{column}=(SELECT id FROM user WHERE username=?)"
            values.append(name)
    state = visit.query("state", "opened")
    if state in ("opened", "closed", "merged"):
        query += " AND i.state=?"
        values.append(state)
    rows = visit.all(f"{query} ORDER BY i.created DESC, i.id DESC LIMIT 100", *values)
    return page(visit, "dashboard.html", kind=kind, rows=rows)
