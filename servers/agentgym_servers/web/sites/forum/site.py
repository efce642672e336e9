"""The forum as a site: its pages to read and to write."""

from __future__ import annotations

import re
import sqlite3
from typing import Final

import msgspec

from agentgym_servers.web.sites.forum import data
from agentgym_servers.web.sites.forum.data import NOW, slug_of, token_of
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
from agentgym_servers.web.sites.site import Request, Response

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
    """A page with the reason why not."""
    return Response(page(visit, "refusal.html", reason=reason).body, status)


def missing(visit: Visit) -> Response:
    """There is no such page."""
    return refusal(visit, 404, "There is nothing here.")


def members_only(act: Act) -> Handler:
    """Send who is not logged in to the log-in page."""
    return only_logged_in(act, COOKIE, "/login")


READING_ROUTER: Final = Router()

PER_PAGE: Final = 15

SORTS: Final = {
    "hot": "s.up - s.down + 8 * julianday(s.created) DESC, s.id DESC",
    "new": "s.created DESC, s.id DESC",
    "top": "s.up - s.down DESC, s.id DESC",
    "most_commented": "comments DESC, s.id DESC",
}

_SUBMISSIONS: Final = """
SELECT s.*, f.name AS forum, u.name AS author, coalesce(v.choice, 0) AS choice,
  (SELECT count(*) FROM comment c WHERE c.submission_id = s.id) AS comments
FROM submission s JOIN forum f ON f.id = s.forum_id JOIN user u ON u.id = s.user_id
LEFT JOIN vote v ON v.kind = 'submission' AND v.target_id = s.id AND v.user_id = ?
"""

_COMMENTS: Final = """
SELECT c.*, u.name AS author, coalesce(v.choice, 0) AS choice, s.title, s.slug, f.name AS forum
FROM comment c JOIN user u ON u.id = c.user_id JOIN submission s ON s.id = c.submission_id
JOIN forum f ON f.id = s.forum_id
LEFT JOIN vote v ON v.kind = 'comment' AND v.target_id = c.id AND v.user_id = ?
"""


class Placed(msgspec.Struct, frozen=True):
    """A comment and its depth in the thread."""

    row: sqlite3.Row
    depth: int


def submission_of(visit: Visit) -> sqlite3.Row | None:
    """The submission that the path names by forum and number."""
    where = "WHERE s.id = ? AND f.name = ?"
    return visit.one(
        f"{_SUBMISSIONS} {where}", _reader_id(visit), visit.number("id"), visit.argument("forum")
    )


def comment_of(visit: Visit) -> sqlite3.Row | None:
    """The comment that the path names by forum, submission and number."""
    where = "WHERE c.id = ? AND s.id = ? AND f.name = ?"
    place = (visit.number("comment"), visit.number("id"), visit.argument("forum"))
    return visit.one(f"{_COMMENTS} {where}", _reader_id(visit), *place)


@READING_ROUTER.get("/", "/hot", "/new", "/top", "/most_commented", "/all", "/all/{sort}")
def front(visit: Visit) -> Response:
    """Submissions of all boards."""
    named = visit.argument("sort") or visit.request.path.strip("/")
    sort = named if named in SORTS else "hot"
    rows = _listed(visit, "", SORTS[sort])
    return page(
        visit,
        "list.html",
        heading="All forums",
        forum=None,
        rows=rows,
        sort=sort,
        base="",
        **_turn(visit),
    )


@READING_ROUTER.get("/forums", "/forums/by_name")
def boards(visit: Visit) -> Response:
    """Every board."""
    rows = visit.all(
        "SELECT f.*, (SELECT count(*) FROM submission s WHERE s.forum_id=f.id) AS submissions"
        " FROM forum f ORDER BY f.name"
    )
    return page(visit, "forums.html", rows=rows)


@READING_ROUTER.get(
    "/f/{forum}",
    "/f/{forum}/hot",
    "/f/{forum}/new",
    "/f/{forum}/top",
    "/f/{forum}/most_commented",
)
def board(visit: Visit) -> Response:
    """One board's submissions."""
    forum = visit.one(
        "SELECT f.*, EXISTS(SELECT 1 FROM subscription s WHERE s.forum_id=f.id AND s.user_id=?)"
        " AS mine, (SELECT count(*) FROM subscription s WHERE s.forum_id=f.id) AS subscribers"
        " FROM forum f WHERE name=?",
        _reader_id(visit),
        visit.argument("forum"),
    )
    if forum is None:
        return missing(visit)
    named = visit.request.path.rstrip("/").rpartition("/")[2]
    sort = named if named in SORTS else "hot"
    rows = _listed(visit, "WHERE s.forum_id = ?", SORTS[sort], forum["id"])
    heading, base = forum["title"], f"/f/{forum['name']}"
    return page(
        visit,
        "list.html",
        heading=heading,
        forum=forum,
        rows=rows,
        sort=sort,
        base=base,
        **_turn(visit),
    )


@READING_ROUTER.get("/f/{forum}/{id}", "/f/{forum}/{id}/{slug}")
def thread(visit: Visit) -> Response:
    """A submission and its comments, replies below what they answer."""
    row = submission_of(visit)
    if row is None:
        return missing(visit)
    order = "WHERE c.submission_id = ? ORDER BY c.created, c.id"
    comments = visit.all(f"{_COMMENTS} {order}", _reader_id(visit), row["id"])
    return page(visit, "submission.html", row=row, comments=threaded(comments))


@READING_ROUTER.get("/f/{forum}/{id}/-/comment/{comment}")
def comment(visit: Visit) -> Response:
    """A comment alone, with a field to reply."""
    row, about = comment_of(visit), submission_of(visit)
    if row is None or about is None:
        return missing(visit)
    replies = visit.all(f"{_COMMENTS} WHERE c.parent_id = ?", _reader_id(visit), row["id"])
    placed = [Placed(row, 0), *(Placed(reply, 1) for reply in replies)]
    return page(visit, "comment.html", row=row, about=about, comments=placed)


@READING_ROUTER.get("/user/{name}", "/user/{name}/submissions", "/user/{name}/comments")
def person(visit: Visit) -> Response:
    """A user's biography, submissions and comments, newest first."""
    user = visit.one("SELECT * FROM user WHERE name=?", visit.argument("name"))
    if user is None:
        return missing(visit)
    part = visit.request.path.rstrip("/").rpartition("/")[2]
    submissions: list[sqlite3.Row] = []
    comments: list[sqlite3.Row] = []
    if part != "comments":
        submissions = _listed(visit, "WHERE s.user_id = ?", SORTS["new"], user["id"])
    if part != "submissions":
        order = "WHERE c.user_id = ? ORDER BY c.created DESC, c.id DESC LIMIT ? OFFSET ?"
        window = (user["id"], PER_PAGE, _offset(visit))
        comments = visit.all(f"{_COMMENTS} {order}", _reader_id(visit), *window)
    placed = [Placed(row, 0) for row in comments]
    return page(visit, "user.html", user=user, rows=submissions, comments=placed, **_turn(visit))


@READING_ROUTER.get("/search")
def search(visit: Visit) -> Response:
    """Submissions whose title or body has the words."""
    words = visit.query("q")[:200]
    rows = []
    if words:
        where = "WHERE instr(lower(s.title || ' ' || s.body), lower(?)) > 0"
        rows = _listed(visit, where, SORTS["new"], words)
    return page(visit, "search.html", words=words, rows=rows, **_turn(visit))


def threaded(comments: list[sqlite3.Row]) -> list[Placed]:
    """Comments in the order of reading: each followed by its replies."""
    replies: dict[int | None, list[sqlite3.Row]] = {}
    present = {row["id"] for row in comments}
    for row in comments:
        parent = row["parent_id"] if row["parent_id"] in present else None
        replies.setdefault(parent, []).append(row)
    placed: list[Placed] = []
    pending = [Placed(row, 0) for row in reversed(replies.get(None, []))]
    while pending:
        current = pending.pop()
        placed.append(current)
        below = reversed(replies.get(current.row["id"], []))
        pending += [Placed(row, current.depth + 1) for row in below]
    return placed


def _listed(visit: Visit, where: str, order: str, *values: object) -> list[sqlite3.Row]:
    query = f"{_SUBMISSIONS} {where} ORDER BY {order} LIMIT {PER_PAGE} OFFSET ?"
    return visit.all(query, _reader_id(visit), *values, _offset(visit))


def _reader_id(visit: Visit) -> int:
    who = reader(visit)
    return int(who["id"]) if who else 0


def _turn(visit: Visit) -> dict[str, object]:
    return {"number": _offset(visit) // PER_PAGE + 1, "per_page": PER_PAGE}


def _offset(visit: Visit) -> int:
    return ((whole(visit.query("page"), 1, 1000) or 1) - 1) * PER_PAGE


WRITING_ROUTER: Final = Router()

_BACK: Final = re.compile(r"/[\w-][\w/.-]*", re.ASCII)

"""A path of this site, so that a vote leads nowhere else."""


@WRITING_ROUTER.get("/login")
def login_form(visit: Visit) -> Response:
    """The log-in form."""
    return page(visit, "login.html", wrong=False)


@WRITING_ROUTER.post("/login", "/login_check")
def login(visit: Visit) -> Response:
    """Log in, and go to the front page."""
    name, password = visit.sent("_username"), visit.sent("_password")
    user = visit.one("SELECT * FROM user WHERE name=? AND password=?", name, password)
    if user is None:
        return page(visit, "login.html", wrong=True)
    token = token_of(user["name"])
    visit.run("INSERT OR IGNORE INTO login VALUES(?,?)", token, user["id"])
    return redirect("/", {COOKIE: token})


@WRITING_ROUTER.post("/logout")
def logout(visit: Visit) -> Response:
    """Log out."""
    visit.run("DELETE FROM login WHERE token=?", visit.cookie(COOKIE))
    return redirect("/", {COOKIE: None})


@WRITING_ROUTER.get("/submit", "/submit/{forum}")
@members_only
def submit_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of a new submission."""
    return _submit_form(visit, visit.argument("forum"), "")


@WRITING_ROUTER.post("/submit")
@members_only
def submit(visit: Visit, who: sqlite3.Row) -> Response:
    """Publish a submission and go to it."""
    title, forum_name = visit.sent("title")[:300], visit.sent("forum")
    forum = visit.one("SELECT * FROM forum WHERE name=?", forum_name)
    if forum is None or not title:
        return _submit_form(visit, forum_name, "A submission needs a title and a forum.")
    url = visit.sent("url")[:1000] or None
    if url and not re.match(r"https?://", url):
        return _submit_form(visit, forum_name, "This is not a web address.")
    values = (forum["id"], who["id"], title, slug_of(title), url, visit.sent("body"), NOW)
    number = visit.run(
        "INSERT INTO submission(forum_id, user_id, title, slug, url, body, created, up, down)"
        " VALUES(?,?,?,?,?,?,?,1,0)",
        *values,
    )
    visit.run("INSERT INTO vote VALUES(?, 'submission', ?, 1)", who["id"], number)
    return redirect(f"/f/{forum['name']}/{number}/{slug_of(title)}")


@WRITING_ROUTER.get("/f/{forum}/{id}/-/edit")
@members_only
def edit_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of one's own submission."""
    row = submission_of(visit)
    if row is None:
        return missing(visit)
    if row["user_id"] != who["id"]:
        return refusal(visit, 403, "This submission is not yours.")
    return page(visit, "edit.html", row=row)


@WRITING_ROUTER.post("/f/{forum}/{id}/-/edit", "/f/{forum}/{id}/-/delete")
@members_only
def edit(visit: Visit, who: sqlite3.Row) -> Response:
    """Change or take away one's own submission."""
    row = submission_of(visit)
    if row is None:
        return missing(visit)
    if row["user_id"] != who["id"]:
        return refusal(visit, 403, "This submission is not yours.")
    if visit.request.path.rstrip("/").endswith("delete"):
        visit.run("DELETE FROM comment WHERE submission_id=?", row["id"])
        visit.run("DELETE FROM submission WHERE id=?", row["id"])
        return redirect(f"/f/{row['forum']}")
    title = visit.sent("title")[:300] or row["title"]
    values = (title, visit.sent("body"), row["id"])
    visit.run("UPDATE submission SET title=?, body=? WHERE id=?", *values)
    return redirect(f"/f/{row['forum']}/{row['id']}/{row['slug']}")


@WRITING_ROUTER.post("/f/{forum}/{id}/-/comment", "/f/{forum}/{id}/-/comment/{comment}")
@members_only
def reply(visit: Visit, who: sqlite3.Row) -> Response:
    """Comment on a submission or reply to a comment, and go there."""
    about = submission_of(visit)
    parent = comment_of(visit) if visit.argument("comment") else None
    if about is None or (visit.argument("comment") and parent is None):
        return missing(visit)
    body = visit.sent("comment")
    if not body:
        return refusal(visit, 400, "A comment needs some text.")
    values = (about["id"], parent["id"] if parent else None, who["id"], body, NOW)
    number = visit.run(
        "INSERT INTO comment(submission_id, parent_id, user_id, body, created, up, down)"
        " VALUES(?,?,?,?,?,1,0)",
        *values,
    )
    visit.run("INSERT INTO vote VALUES(?, 'comment', ?, 1)", who["id"], number)
    return redirect(f"/f/{about['forum']}/{about['id']}/-/comment/{number}")


@WRITING_ROUTER.get("/f/{forum}/{id}/-/comment/{comment}/edit")
@members_only
def comment_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of one's own comment."""
    row = comment_of(visit)
    if row is None or row["user_id"] != who["id"]:
        return missing(visit)
    return page(visit, "edit_comment.html", row=row)


@WRITING_ROUTER.post(
    "/f/{forum}/{id}/-/comment/{comment}/edit", "/f/{forum}/{id}/-/comment/{comment}/delete"
)
@members_only
def edit_comment(visit: Visit, who: sqlite3.Row) -> Response:
    """Change or take away one's own comment."""
    row = comment_of(visit)
    if row is None or row["user_id"] != who["id"]:
        return missing(visit)
    if visit.request.path.rstrip("/").endswith("delete"):
        visit.run("DELETE FROM comment WHERE id=?", row["id"])
    else:
        visit.run("UPDATE comment SET body=? WHERE id=?", visit.sent("comment"), row["id"])
    return redirect(f"/f/{row['forum']}/{row['submission_id']}/{row['slug']}")


@WRITING_ROUTER.post("/sv/{id}")
@members_only
def vote_submission(visit: Visit, who: sqlite3.Row) -> Response:
    """Vote on a submission."""
    return _vote(visit, who, "submission")


@WRITING_ROUTER.post("/cv/{id}")
@members_only
def vote_comment(visit: Visit, who: sqlite3.Row) -> Response:
    """Vote on a comment."""
    return _vote(visit, who, "comment")


@WRITING_ROUTER.post("/f/{forum}/subscribe", "/f/{forum}/unsubscribe")
@members_only
def subscribe(visit: Visit, who: sqlite3.Row) -> Response:
    """Follow a board, or no longer."""
    forum = visit.one("SELECT * FROM forum WHERE name=?", visit.argument("forum"))
    if forum is None:
        return missing(visit)
    if visit.request.path.rstrip("/").endswith("/subscribe"):
        visit.run("INSERT OR IGNORE INTO subscription VALUES(?,?)", who["id"], forum["id"])
    else:
        statement = "DELETE FROM subscription WHERE user_id=? AND forum_id=?"
        visit.run(statement, who["id"], forum["id"])
    return redirect(f"/f/{forum['name']}")


@WRITING_ROUTER.get("/user/{name}/edit_biography")
@members_only
def biography_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of one's own biography."""
    if visit.argument("name") != who["name"]:
        return refusal(visit, 403, "This biography is not yours.")
    return page(visit, "biography.html")


@WRITING_ROUTER.post("/user/{name}/edit_biography")
@members_only
def biography(visit: Visit, who: sqlite3.Row) -> Response:
    """Change one's own biography."""
    if visit.argument("name") != who["name"]:
        return refusal(visit, 403, "This biography is not yours.")
    visit.run("UPDATE user SET bio=? WHERE id=?", visit.sent("biography"), who["id"])
    return redirect(f"/user/{who['name']}")


@WRITING_ROUTER.get("/create_forum", "/f/{forum}/edit")
@members_only
def forum_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of a new board, or of one's own."""
    if visit.request.path.rstrip("/") == "/create_forum":
        return page(visit, "forum_form.html", forum=None, problem="")
    own = "SELECT * FROM forum WHERE name=? AND owner_id=?"
    forum = visit.one(own, visit.argument("forum"), who["id"])
    if forum is None:
        return refusal(visit, 403, "This forum is not yours.")
    return page(visit, "forum_form.html", forum=forum, problem="")


@WRITING_ROUTER.post("/create_forum", "/f/{forum}/edit")
@members_only
def save_forum(visit: Visit, who: sqlite3.Row) -> Response:
    """Open a board, or change one's own, and go to it."""
    name = visit.argument("forum") or visit.sent("name")
    texts = (visit.sent("title") or name, visit.sent("description"), visit.sent("sidebar"))
    forum = visit.one("SELECT * FROM forum WHERE name=?", name)
    if not visit.argument("forum"):
        if forum is not None or not re.fullmatch(r"\w{3,25}", name, re.ASCII):
            problem = "A name has 3 to 25 letters, digits or _, and is not taken."
            return page(visit, "forum_form.html", forum=None, problem=problem)
        visit.run(
            "INSERT INTO forum(name, title, description, sidebar, owner_id) VALUES(?,?,?,?,?)",
            name,
            *texts,
            who["id"],
        )
        return redirect(f"/f/{name}")
    if forum is None or forum["owner_id"] != who["id"]:
        return refusal(visit, 403, "This forum is not yours.")
    statement = "UPDATE forum SET title=?, description=?, sidebar=? WHERE id=?"
    visit.run(statement, *texts, forum["id"])
    return redirect(f"/f/{forum['name']}")


def _submit_form(visit: Visit, chosen: str, problem: str) -> Response:
    forums = visit.all("SELECT name FROM forum ORDER BY name")
    return page(visit, "submit.html", forums=forums, chosen=chosen, problem=problem)


def _vote(visit: Visit, who: sqlite3.Row, kind: str) -> Response:
    new = {"1": 1, "-1": -1, "0": 0}.get(visit.sent("choice"))
    row = visit.one(f"SELECT * FROM {kind} WHERE id=?", visit.number("id"))
    if row is None or new is None:
        return missing(visit) if row is None else refusal(visit, 400, "This is not a vote.")
    where = (who["id"], kind, row["id"])
    cast = visit.one("SELECT choice FROM vote WHERE user_id=? AND kind=? AND target_id=?", *where)
    old = cast["choice"] if cast else 0
    changes = ((new == 1) - (old == 1), (new == -1) - (old == -1), row["id"])
    visit.run(f"UPDATE {kind} SET up=up+?, down=down+? WHERE id=?", *changes)
    visit.run("INSERT OR REPLACE INTO vote VALUES(?,?,?,?)", *where, new)
    back = visit.sent("back")
    return redirect(back if _BACK.fullmatch(back) else "/")


_ROUTERS: Final = (WRITING_ROUTER, READING_ROUTER)


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
