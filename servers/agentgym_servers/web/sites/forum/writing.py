"""What members do on the forum: log in, submit, reply, vote and open boards."""

from __future__ import annotations

import re
import sqlite3
from typing import Final

from agentgym_servers.web.sites.forum.data import NOW, slug_of, token_of
from agentgym_servers.web.sites.forum.reading import (
    COOKIE,
    comment_of,
    members_only,
    missing,
    page,
    refusal,
    submission_of,
)
from agentgym_servers.web.sites.pages import Router, Visit, redirect
from agentgym_servers.web.sites.site import Response

ROUTER: Final = Router()

_BACK: Final = re.compile(r"/[\w-][\w/.-]*", re.ASCII)
"""A path of this site, so that a vote leads nowhere else."""


@ROUTER.get("/login")
def login_form(visit: Visit) -> Response:
    """The log-in form."""
    return page(visit, "login.html", wrong=False)


@ROUTER.post("/login", "/login_check")
def login(visit: Visit) -> Response:
    """Log in, and go to the front page."""
    name, password = visit.sent("_username"), visit.sent("_password")
    user = visit.one("SELECT * FROM user WHERE name=? AND password=?", name, password)
    if user is None:
        return page(visit, "login.html", wrong=True)
    token = token_of(user["name"])
    visit.run("INSERT OR IGNORE INTO login VALUES(?,?)", token, user["id"])
    return redirect("/", {COOKIE: token})


@ROUTER.post("/logout")
def logout(visit: Visit) -> Response:
    """Log out."""
    visit.run("DELETE FROM login WHERE token=?", visit.cookie(COOKIE))
    return redirect("/", {COOKIE: None})


@ROUTER.get("/submit", "/submit/{forum}")
@members_only
def submit_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of a new submission."""
    return _submit_form(visit, visit.argument("forum"), "")


@ROUTER.post("/submit")
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


@ROUTER.get("/f/{forum}/{id}/-/edit")
@members_only
def edit_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of one's own submission."""
    row = submission_of(visit)
    if row is None:
        return missing(visit)
    if row["user_id"] != who["id"]:
        return refusal(visit, 403, "This submission is not yours.")
    return page(visit, "edit.html", row=row)


@ROUTER.post("/f/{forum}/{id}/-/edit", "/f/{forum}/{id}/-/delete")
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


@ROUTER.post("/f/{forum}/{id}/-/comment", "/f/{forum}/{id}/-/comment/{comment}")
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


@ROUTER.get("/f/{forum}/{id}/-/comment/{comment}/edit")
@members_only
def comment_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of one's own comment."""
    row = comment_of(visit)
    if row is None or row["user_id"] != who["id"]:
        return missing(visit)
    return page(visit, "edit_comment.html", row=row)


@ROUTER.post(
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


@ROUTER.post("/sv/{id}")
@members_only
def vote_submission(visit: Visit, who: sqlite3.Row) -> Response:
    """Vote on a submission."""
    return _vote(visit, who, "submission")


@ROUTER.post("/cv/{id}")
@members_only
def vote_comment(visit: Visit, who: sqlite3.Row) -> Response:
    """Vote on a comment."""
    return _vote(visit, who, "comment")


@ROUTER.post("/f/{forum}/subscribe", "/f/{forum}/unsubscribe")
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


@ROUTER.get("/user/{name}/edit_biography")
@members_only
def biography_form(visit: Visit, who: sqlite3.Row) -> Response:
    """The form of one's own biography."""
    if visit.argument("name") != who["name"]:
        return refusal(visit, 403, "This biography is not yours.")
    return page(visit, "biography.html")


@ROUTER.post("/user/{name}/edit_biography")
@members_only
def biography(visit: Visit, who: sqlite3.Row) -> Response:
    """Change one's own biography."""
    if visit.argument("name") != who["name"]:
        return refusal(visit, 403, "This biography is not yours.")
    visit.run("UPDATE user SET bio=? WHERE id=?", visit.sent("biography"), who["id"])
    return redirect(f"/user/{who['name']}")


@ROUTER.get("/create_forum", "/f/{forum}/edit")
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


@ROUTER.post("/create_forum", "/f/{forum}/edit")
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
