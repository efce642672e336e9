"""The code host's issues: lists, threads, and what is done to them."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.sites.code_host.data import NOW
from agentgym_servers.web.sites.code_host.projects import (
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

SORTS: Final = {
    "created_date": "i.created DESC, i.id DESC",
    "created_asc": "i.created, i.id",
    "updated_desc": "i.updated DESC, i.id DESC",
    "title_asc": "i.title, i.id",
}

_ISSUES: Final = """
SELECT i.*, a.username AS author, b.username AS assignee, m.title AS milestone,
  (SELECT group_concat(name, ', ') FROM issue_label l WHERE l.issue_id = i.id) AS labels,
  (SELECT count(*) FROM note n WHERE n.kind = 'issue' AND n.target_id = i.id) AS notes
FROM issue i JOIN user a ON a.id = i.author_id LEFT JOIN user b ON b.id = i.assignee_id
LEFT JOIN milestone m ON m.id = i.milestone_id WHERE i.project_id = ?
"""


@ROUTER.get("/{space}/{name}/-/issues")
@of_project
def listed(visit: Visit, project: sqlite3.Row) -> Response:
    """The issues by state, label, author, assignee and words of the title."""
    query, values = _ISSUES, [project["id"]]
    state = visit.query("state", "opened")
    if state in ("opened", "closed"):
        query, values = f"{query} AND i.state = ?", [*values, state]
    for name, column in (("author_username", "a"), ("assignee_username", "b")):
        if username := visit.query(name):
            query, values = f"{query} AND {column}.username = ?", [*values, username]
    if label := visit.query("label_name[]"):
        query += " AND EXISTS(SELECT 1 FROM issue_label l WHERE l.issue_id=i.id AND l.name=?)"
        values.append(label)
    if words := visit.query("search")[:200]:
        query += " AND instr(lower(i.title), lower(?)) > 0"
        values.append(words)
    sort = visit.query("sort") if visit.query("sort") in SORTS else "created_date"
    rows = visit.all(f"{query} ORDER BY {SORTS[sort]} LIMIT 100", *values)
    chosen = {"state": state, "label": label, "words": words, "sort": sort}
    chosen["author"] = visit.query("author_username")
    given = choices(visit, project)
    return page(visit, "issues.html", project=project, rows=rows, chosen=chosen, **given)


@ROUTER.get("/{space}/{name}/-/issues/new")
@by_role()
def form(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """The form of a new issue."""
    return page(visit, "new_issue.html", project=project, problem="", **choices(visit, project))


@ROUTER.post("/{space}/{name}/-/issues")
@by_role()
def create(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Open an issue, and go to it."""
    title = visit.sent("issue[title]")[:300]
    if not title:
        problem = "An issue needs a title."
        given = choices(visit, project)
        return page(visit, "new_issue.html", project=project, problem=problem, **given)
    query = "SELECT coalesce(max(iid), 0) + 1 AS iid FROM issue WHERE project_id=?"
    last = visit.one(query, project["id"])
    iid = last["iid"] if last else 1
    due = visit.sent("issue[due_date]")[:10] or None
    number = visit.run(
        "INSERT INTO issue(project_id, iid, title, body, author_id, assignee_id, milestone_id,"
        " state, created, updated, due) VALUES(?,?,?,?,?,?,?,'opened',?,?,?)",
        *(project["id"], iid, title, visit.sent("issue[description]"), who["id"]),
        *(_assignee(visit, project), _milestone(visit, project), NOW, NOW, due),
    )
    _label(visit, project, number)
    return redirect(f"{home_of(project)}/-/issues/{iid}")


@ROUTER.get("/{space}/{name}/-/issues/{iid}")
@of_project
def issue(visit: Visit, project: sqlite3.Row) -> Response:
    """One issue and its comments."""
    row = visit.one(f"{_ISSUES} AND i.iid = ?", project["id"], visit.number("iid"))
    if row is None:
        return missing(visit)
    notes = notes_on(visit, "issue", row)
    given = choices(visit, project)
    return page(visit, "issue.html", project=project, row=row, notes=notes, **given)


@ROUTER.post("/{space}/{name}/-/issues/{iid}/{act}")
@by_role()
def change(visit: Visit, project: sqlite3.Row, who: sqlite3.Row) -> Response:
    """Comment on an issue, close or reopen it, or assign, label or plan it."""
    row = visit.one(f"{_ISSUES} AND i.iid = ?", project["id"], visit.number("iid"))
    act = visit.argument("act")
    if row is None or act not in ("notes", "close", "reopen", "assign", "labels", "milestone"):
        return missing(visit)
    if act == "notes":
        if not visit.sent("note"):
            return refusal(visit, 400, "A comment needs some text.")
        statement = "INSERT INTO note(kind, target_id, user_id, body, created)"
        values = (row["id"], who["id"], visit.sent("note"), NOW)
        visit.run(f"{statement} VALUES('issue',?,?,?,?)", *values)
    elif act == "labels":
        _label(visit, project, row["id"])
    elif act in ("close", "reopen"):
        state = "closed" if act == "close" else "opened"
        visit.run("UPDATE issue SET state=? WHERE id=?", state, row["id"])
    elif act == "assign":
        chosen = _assignee(visit, project)
        visit.run("UPDATE issue SET assignee_id=? WHERE id=?", chosen, row["id"])
    else:
        chosen = _milestone(visit, project)
        visit.run("UPDATE issue SET milestone_id=? WHERE id=?", chosen, row["id"])
    visit.run("UPDATE issue SET updated=? WHERE id=?", NOW, row["id"])
    return redirect(f"{home_of(project)}/-/issues/{row['iid']}")


def choices(visit: Visit, project: sqlite3.Row) -> dict[str, list[sqlite3.Row]]:
    """What an issue's forms offer: labels, members and milestones of the project."""
    members = "SELECT u.* FROM member m JOIN user u ON u.id=m.user_id WHERE m.project_id=?"
    milestones = "SELECT * FROM milestone WHERE project_id=? ORDER BY iid"
    return {
        "labels": visit.all("SELECT name FROM label WHERE project_id=?", project["id"]),
        "members": visit.all(f"{members} ORDER BY u.username", project["id"]),
        "milestones": visit.all(milestones, project["id"]),
    }


def _assignee(visit: Visit, project: sqlite3.Row) -> int | None:
    query = (
        "SELECT u.id FROM member m JOIN user u ON u.id=m.user_id"
        " WHERE m.project_id=? AND u.username=?"
    )
    row = visit.one(query, project["id"], visit.sent("assignee"))
    return int(row["id"]) if row else None


def _milestone(visit: Visit, project: sqlite3.Row) -> int | None:
    query = "SELECT id FROM milestone WHERE project_id=? AND title=?"
    row = visit.one(query, project["id"], visit.sent("milestone"))
    return int(row["id"]) if row else None


def _label(visit: Visit, project: sqlite3.Row, issue_id: int) -> None:
    query = "SELECT name FROM label WHERE project_id=? AND name=?"
    if label := visit.one(query, project["id"], visit.sent("label")):
        visit.run("INSERT OR IGNORE INTO issue_label VALUES(?,?)", issue_id, label["name"])
