"""The code host's merge requests: lists, threads, and what is done to them."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.sites.code_host.data import NOW
from agentgym_servers.web.sites.code_host.issues import choices
from agentgym_servers.web.sites.code_host.projects import (
    MANAGERS,
    WRITERS,
    by_role,
    home_of,
    missing,
    notes_on,
    of_project,
    page,
    refusal,
)
from agentgym_servers.web.sites.pages import Router, Visit, redirect
from agentgym_servers.web.sites.site import Response

ROUTER: Final = Router()

_REQUESTS: Final = """
SELECT r.*, a.username AS author, b.username AS assignee, c.username AS reviewer
FROM merge_request r JOIN user a ON a.id = r.author_id LEFT JOIN user b ON b.id = r.assignee_id
LEFT JOIN user c ON c.id = r.reviewer_id WHERE r.project_id = ?
"""


@ROUTER.get("/{space}/{name}/-/merge_requests")
@of_project
def list_merge_requests(visit: Visit, project: sqlite3.Row) -> Response:
    """The merge requests of a state, newest first."""
    query, values = _REQUESTS, [project["id"]]
    state = visit.query("state", "opened")
    if state in ("opened", "merged", "closed"):
        query, values = f"{query} AND r.state = ?", [*values, state]
    rows = visit.all(f"{query} ORDER BY r.created DESC, r.id DESC", *values)
    return page(visit, "merge_requests.html", project=project, rows=rows, state=state)


@ROUTER.get("/{space}/{name}/-/merge_requests/new")
@by_role(*WRITERS)
def merge_request_form(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """The form of a new merge request."""
    query = "SELECT name FROM branch WHERE project_id=? ORDER BY name"
    branches = visit.all(query, project["id"])
    given = choices(visit, project)
    return page(visit, "new_merge_request.html", project=project, branches=branches, **given)


@ROUTER.post("/{space}/{name}/-/merge_requests")
@by_role(*WRITERS)
def create_merge_request(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Ask for a merge, and go to the request."""
    title, known = visit.sent("title")[:300], "SELECT 1 FROM branch WHERE project_id=? AND name=?"
    source, target = visit.sent("source_branch"), visit.sent("target_branch")
    fits = all(visit.one(known, project["id"], name) for name in (source, target))
    if not title or not fits or source == target:
        return refusal(visit, 400, "A merge request needs a title and two branches.")
    query = "SELECT coalesce(max(iid), 0) + 1 AS iid FROM merge_request WHERE project_id=?"
    last = visit.one(query, project["id"])
    iid = last["iid"] if last else 1
    reviewer = visit.one("SELECT id FROM user WHERE username=?", visit.sent("reviewer"))
    visit.run(
        "INSERT INTO merge_request(project_id, iid, title, body, author_id, reviewer_id, source,"
        " target, state, created, updated) VALUES(?,?,?,?,?,?,?,?,'opened',?,?)",
        *(project["id"], iid, title, visit.sent("description"), who["id"]),
        *(reviewer["id"] if reviewer else None, source, target, NOW, NOW),
    )
    return redirect(f"{home_of(project)}/-/merge_requests/{iid}")


@ROUTER.get("/{space}/{name}/-/merge_requests/{iid}")
@of_project
def merge_request(visit: Visit, project: sqlite3.Row) -> Response:
    """One merge request and its comments."""
    row = visit.one(f"{_REQUESTS} AND r.iid = ?", project["id"], visit.number("iid"))
    if row is None:
        return missing(visit)
    notes = notes_on(visit, "merge_request", row)
    return page(visit, "merge_request.html", project=project, row=row, notes=notes)


@ROUTER.post("/{space}/{name}/-/merge_requests/{iid}/notes")
@by_role()
def note(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Comment on a merge request."""
    row = visit.one(f"{_REQUESTS} AND r.iid = ?", project["id"], visit.number("iid"))
    if row is None:
        return missing(visit)
    if not visit.sent("note"):
        return refusal(visit, 400, "A comment needs some text.")
    statement = "INSERT INTO note(kind, target_id, user_id, body, created)"
    values = (row["id"], who["id"], visit.sent("note"), NOW)
    visit.run(f"{statement} VALUES('merge_request',?,?,?,?)", *values)
    return redirect(f"{home_of(project)}/-/merge_requests/{row['iid']}")


@ROUTER.post("/{space}/{name}/-/merge_requests/{iid}/{act}")
@by_role(*MANAGERS)
def decide(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Merge a request or close it."""
    row = visit.one(f"{_REQUESTS} AND r.iid = ?", project["id"], visit.number("iid"))
    state = {"merge": "merged", "close": "closed"}.get(visit.argument("act"))
    if row is None or state is None:
        return missing(visit)
    if row["state"] != "opened":
        return refusal(visit, 400, "This merge request is not open.")
    statement = "UPDATE merge_request SET state=?, updated=? WHERE id=?"
    visit.run(statement, state, NOW, row["id"])
    return redirect(f"{home_of(project)}/-/merge_requests/{row['iid']}")
