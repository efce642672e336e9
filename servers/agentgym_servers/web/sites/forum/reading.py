"""The forum's pages to read: boards, threads, people and search."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from agentgym_servers.web.sites.pages import (
    Act,
    Handler,
    Router,
    Visit,
    logged_in,
    only_logged_in,
    render,
    whole,
)
from agentgym_servers.web.sites.site import Response

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


ROUTER: Final = Router()

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


@ROUTER.get("/", "/hot", "/new", "/top", "/most_commented", "/all", "/all/{sort}")
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


@ROUTER.get("/forums", "/forums/by_name")
def boards(visit: Visit) -> Response:
    """Every board."""
    rows = visit.all(
        "SELECT f.*, (SELECT count(*) FROM submission s WHERE s.forum_id=f.id) AS submissions"
        " FROM forum f ORDER BY f.name"
    )
    return page(visit, "forums.html", rows=rows)


@ROUTER.get(
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


@ROUTER.get("/f/{forum}/{id}", "/f/{forum}/{id}/{slug}")
def thread(visit: Visit) -> Response:
    """A submission and its comments, replies below what they answer."""
    row = submission_of(visit)
    if row is None:
        return missing(visit)
    order = "WHERE c.submission_id = ? ORDER BY c.created, c.id"
    comments = visit.all(f"{_COMMENTS} {order}", _reader_id(visit), row["id"])
    return page(visit, "submission.html", row=row, comments=threaded(comments))


@ROUTER.get("/f/{forum}/{id}/-/comment/{comment}")
def comment(visit: Visit) -> Response:
    """A comment alone, with a field to reply."""
    row, about = comment_of(visit), submission_of(visit)
    if row is None or about is None:
        return missing(visit)
    replies = visit.all(f"{_COMMENTS} WHERE c.parent_id = ?", _reader_id(visit), row["id"])
    placed = [Placed(row, 0), *(Placed(reply, 1) for reply in replies)]
    return page(visit, "comment.html", row=row, about=about, comments=placed)


@ROUTER.get("/user/{name}", "/user/{name}/submissions", "/user/{name}/comments")
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


@ROUTER.get("/search")
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
