"""The tasks of the code host: questions and changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from agentgym_servers.web.sites.code_host import data
from agentgym_servers.web.sites.code_host.change_tasks import CHANGES as CHANGES
from agentgym_servers.web.sites.code_host.data import ACCOUNT, LABELS
from agentgym_servers.web.sites.code_host.ways import issue, place, project, projects, url
from agentgym_servers.web.tasks.scripts import Click, Goto, ScriptedTask, Select
from agentgym_servers.web.tasks.task_forms import (
    Databases,
    Instance,
    TaskBook,
    answered,
    answered_exactly,
    arrived,
    best,
    rows,
)

BOOK: Final = TaskBook("gitlab")
_CONTRIBUTORS: Final = (
    "SELECT u.*, count(*) AS n FROM change c JOIN user u ON u.id=c.author_id"
    " WHERE c.project_id=? GROUP BY u.id ORDER BY n DESC, u.id"
)


def tasks(seed: int) -> list[ScriptedTask]:
    """The code host's tasks over the data of a seed."""
    databases = {"gitlab": data.make_database(seed)}
    return BOOK.tasks(databases, seed) + CHANGES.tasks(databases, seed)


@BOOK.template(1101, "Tell me who has made the most commits to the {{project}} project.")
def top_contributor(databases: Databases) -> Iterator[Instance]:
    """Read the first row of a table."""
    for row, top in _tops(databases):
        steps = (*project(row), Click("link", "Contributors"))
        yield Instance({"project": place(row)}, answered(top["name"]), steps, top["name"])


@BOOK.template(
    1102, "How many commits did {{author}} make to {{project}}? Answer with the number only."
)
def commits_of(databases: Databases) -> Iterator[Instance]:
    """Count what one person did."""
    for row in projects(databases):
        for author in rows(databases["gitlab"], _CONTRIBUTORS, row["id"]):
            count, values = str(author["n"]), {"author": author["name"], "project": place(row)}
            choose = (Select("Author", author["name"]), Click("button", "Filter"))
            steps = (*project(row), Click("link", "Commits"), *choose)
            yield Instance(values, answered_exactly(count), steps, count)


@BOOK.template(
    1103,
    "Tell me the email address of the contributor who has the most commits to {{project}}.",
    test=True,
)
def top_email(databases: Databases) -> Iterator[Instance]:
    """Read another column of that row."""
    for row, top in _tops(databases):
        steps = (*project(row), Click("link", "Contributors"))
        yield Instance({"project": place(row)}, answered(top["email"]), steps, top["email"])


@BOOK.template(1104, "Show me the command to clone {{project}} with SSH.")
def clone(databases: Databases) -> Iterator[Instance]:
    """Copy a line."""
    for row in projects(databases):
        command = f"git clone ssh://git@code.test:2222/{place(row)}.git"
        yield Instance({"project": place(row)}, answered(command), project(row), command)


@BOOK.template(1105, "Tell me the full name of the owner of the {{project}} project.", test=True)
def owner(databases: Databases) -> Iterator[Instance]:
    """Find a row by its role."""
    query = (
        "SELECT u.name FROM member m JOIN user u ON u.id=m.user_id"
        " WHERE m.project_id=? AND m.role='Owner'"
    )
    for row in projects(databases):
        owners = rows(databases["gitlab"], query, row["id"])
        if len(owners) == 1:
            name, steps = owners[0]["name"], (*project(row), Click("link", "Members"))
            yield Instance({"project": place(row)}, answered(name), steps, name)


@BOOK.template(
    1106,
    'How many open issues with the label "{{label}}" does {{project}} have? '
    "Answer with the number only.",
)
def labelled_count(databases: Databases) -> Iterator[Instance]:
    """Filter a list and count."""
    query = (
        "SELECT l.name, count(*) AS n FROM issue i JOIN issue_label l ON l.issue_id=i.id"
        " WHERE i.project_id=? AND i.state='opened' GROUP BY l.name ORDER BY l.name"
    )
    for row in projects(databases):
        for label in rows(databases["gitlab"], query, row["id"]):
            count, values = str(label["n"]), {"label": label["name"], "project": place(row)}
            choose = (Select("Label", label["name"]), Click("button", "Filter issues"))
            steps = (*project(row), Click("link", "Issues"), *choose)
            yield Instance(values, answered_exactly(count), steps, count)


@BOOK.template(1107, "How many stars does {{project}} have? Answer with the number only.")
def stars(databases: Databases) -> Iterator[Instance]:
    """Read a number."""
    for row in projects(databases):
        count = str(row["stars"])
        yield Instance({"project": place(row)}, answered_exactly(count), project(row), count)


@BOOK.template(1108, "Open the issue of {{project}} that was updated last, open or closed.")
def last_updated(databases: Databases) -> Iterator[Instance]:
    """Sort a list and open its first row."""
    query = "SELECT * FROM issue WHERE project_id=? ORDER BY updated DESC"
    for row in projects(databases):
        last = best(rows(databases["gitlab"], query, row["id"]), "updated")
        if last:
            choose = (Select("State", "All"), Select("Sort by", "Updated date"))
            opening = (Click("button", "Filter issues"), Click("link", last["title"]))
            steps = (*project(row), Click("link", "Issues"), *choose, *opening)
            where = url(row, f"issues/{last['iid']}")
            yield Instance({"project": place(row)}, arrived(where), steps)


@BOOK.template(1109, 'List the open issues of {{project}} that have the label "{{label}}".')
def labelled(databases: Databases) -> Iterator[Instance]:
    """Filter a list."""
    for row in projects(databases):
        for label in LABELS:
            choose = (Select("Label", label), Click("button", "Filter issues"))
            steps = (*project(row), Click("link", "Issues"), *choose)
            query = urlencode({"label_name[]": label, "state": "opened"})
            values = {"project": place(row), "label": label}
            yield Instance(values, arrived(f"{url(row, 'issues')}?{query}"), steps)


@BOOK.template(1110, "Check out {{list}}.")
def dashboards(databases: Databases) -> Iterator[Instance]:
    """Open a list of one's own."""
    name = ACCOUNT[0]
    lists = (
        ("my to-do list", "todos", "To-Do List"),
        ("the issues assigned to me", f"issues?assignee_username={name}", "Assigned issues"),
        (
            "the merge requests assigned to me",
            f"merge_requests?assignee_username={name}",
            "Assigned merge requests",
        ),
        (
            "the merge requests that require my review",
            f"merge_requests?reviewer_username={name}",
            "Review requests",
        ),
    )
    for what, path, label in lists:
        where = f"__GITLAB__/dashboard/{path}"
        yield Instance({"list": what}, arrived(where), (Click("link", label),))


@BOOK.template(1111, 'Open the issue "{{title}}" of {{project}} and tell me its state.', test=True)
def state_of(databases: Databases) -> Iterator[Instance]:
    """Find an issue by its title, and answer from there."""
    for row in projects(databases):
        for one in rows(databases["gitlab"], "SELECT * FROM issue WHERE project_id=?", row["id"]):
            answer = "open" if one["state"] == "opened" else "closed"
            both = answered(answer)
            where = url(row, f"issues/{one['iid']}")
            both |= {"eval_types": ["string_match", "url_match"], "reference_url": where}
            values = {"title": one["title"], "project": place(row)}
            yield Instance(values, both, issue(row, one), answer)


@BOOK.template(1112, "Tell me the due date of the milestone of {{project}}.")
def milestone_due(databases: Databases) -> Iterator[Instance]:
    """Read a date."""
    for row in projects(databases):
        found = rows(databases["gitlab"], "SELECT * FROM milestone WHERE project_id=?", row["id"])
        due, steps = found[0]["due"], (Goto(url(row, "milestones")),)
        yield Instance({"project": place(row)}, answered(due), steps, due)


def _tops(databases: Databases) -> Iterator[tuple[sqlite3.Row, sqlite3.Row]]:
    for row in projects(databases):
        top = best(rows(databases["gitlab"], _CONTRIBUTORS, row["id"]), "n")
        if top:
            yield row, top
