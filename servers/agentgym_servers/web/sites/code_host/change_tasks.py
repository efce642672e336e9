"""The tasks of the code host that change something."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from agentgym_servers.web.sites.code_host.data import ACCOUNT, LABELS, PARTS, ROLES
from agentgym_servers.web.sites.code_host.ways import (
    issue,
    merge_request,
    place,
    project,
    projects,
    url,
)
from agentgym_servers.web.tasks.scripts import Click, Fill, Select
from agentgym_servers.web.tasks.task_forms import (
    Databases,
    Instance,
    TaskBook,
    changed,
    outer_text,
    rows,
    shows,
    shows_exactly,
)

CHANGES: Final = TaskBook("gitlab")
ME: Final = ACCOUNT[0]
TITLE: Final = outer_text('[data-qa-selector="title_content"]')


@CHANGES.template(
    1151,
    'Create an issue in {{project}} with the title "{{title}}" and the description "{{text}}".',
)
def create_issue(databases: Databases) -> Iterator[Instance]:
    """Fill in a form."""
    for row in projects(databases):
        for part in PARTS[:3]:
            title, text = f"The {part} needs an owner", f"Nobody looks after the {part}."
            form = (Fill("Title", title), Fill("Description", text))
            open_form = (Click("link", "Issues"), Click("link", "New issue"))
            steps = (*project(row), *open_form, *form, Click("button", "Create issue"))
            marks = (
                shows_exactly("last", title, TITLE),
                shows("last", text, locator=outer_text(".detail-page-description")),
            )
            values = {"project": place(row), "title": title, "text": text}
            yield Instance(values, changed(*marks, at=url(row, "issues")), steps)


@CHANGES.template(1152, 'Comment "{{text}}" on the issue "{{title}}" of {{project}}.')
def comment_issue(databases: Databases) -> Iterator[Instance]:
    """Write below an issue."""
    for row, one in _issues(databases):
        text = f"I will look into number {one['iid']} this week."
        steps = (*issue(row, one), Fill("Comment", text), Click("button", "Comment"))
        mark = shows(url(row, f"issues/{one['iid']}"), text, locator=outer_text("#notes-list"))
        yield Instance({**_named(row, one), "text": text}, changed(mark), steps)


@CHANGES.template(1153, 'Close the issue "{{title}}" of {{project}}.')
def close_issue(databases: Databases) -> Iterator[Instance]:
    """Press a button."""
    for row, one in _issues(databases):
        if one["state"] == "opened":
            steps = (*issue(row, one), Click("button", "Close issue"))
            mark = _issue_shows(row, one, "state", "closed")
            yield Instance(_named(row, one), changed(mark), steps)


@CHANGES.template(1154, 'Assign the issue "{{title}}" of {{project}} to {{user}}.')
def assign_issue(databases: Databases) -> Iterator[Instance]:
    """Choose a person."""
    for row, one in _issues(databases):
        for user in _members(databases, row)[:2]:
            if user["id"] == one["assignee_id"]:
                continue
            choose = (Select("Assignee", user["username"]), Click("button", "Assign"))
            mark = _issue_shows(row, one, "assignee", user["username"])
            values = {**_named(row, one), "user": user["username"]}
            yield Instance(values, changed(mark), (*issue(row, one), *choose))


@CHANGES.template(1155, 'Label the issue "{{title}}" of {{project}} with "{{label}}".', test=True)
def label_issue(databases: Databases) -> Iterator[Instance]:
    """Choose a label that is not there yet."""
    query = "SELECT 1 FROM issue_label WHERE issue_id=? AND name=?"
    for row, one in _issues(databases):
        for label in LABELS:
            if rows(databases["gitlab"], query, one["id"], label):
                continue
            choose = (Select("Label", label), Click("button", "Add label"))
            where = url(row, f"issues/{one['iid']}")
            mark = shows(where, label, locator=outer_text(".issue-labels"))
            values = {**_named(row, one), "label": label}
            yield Instance(values, changed(mark), (*issue(row, one), *choose))


@CHANGES.template(1156, "Star the {{project}} project.")
def star(databases: Databases) -> Iterator[Instance]:
    """Press a button."""
    for row in projects(databases):
        where = f"__GITLAB__/users/{ME}/starred"
        mark = shows(where, place(row), locator=outer_text("#content-body"))
        steps = (*project(row), Click("button", "Star"))
        yield Instance({"project": place(row)}, changed(mark), steps)


@CHANGES.template(1157, "Follow the owner of {{project}}, {{name}}.")
def follow(databases: Databases) -> Iterator[Instance]:
    """Go from a project to a person."""
    for row in projects(databases):
        for user in _members(databases, row):
            if user["role"] != "Owner" or user["username"] == ME:
                continue
            steps = (*project(row), Click("link", "Members"), Click("link", user["name"]))
            where = f"__GITLAB__/users/{ME}/following"
            mark = shows(where, f"@{user['username']}", locator=outer_text(".user-profile"))
            values = {"project": place(row), "name": user["name"]}
            yield Instance(values, changed(mark), (*steps, Click("button", "Follow")))


@CHANGES.template(1158, "Invite {{user}} to my project {{project}} as a {{role}}.")
def invite(databases: Databases) -> Iterator[Instance]:
    """Fill in a form of one's own project."""
    query = (
        "SELECT username FROM user WHERE id NOT IN"
        " (SELECT user_id FROM member WHERE project_id=?) ORDER BY username"
    )
    for row in _mine(databases):
        for number, user in enumerate(rows(databases["gitlab"], query, row["id"])[:8]):
            name, role = user["username"], ROLES[number % 4]
            form = (Fill("Username", name), Select("Select a role", role))
            steps = (*project(row), Click("link", "Members"), *form, Click("button", "Invite"))
            locator = f"func:gitlab_get_project_memeber_role(__page__, '{name}')"
            mark = shows(url(row, "project_members"), role, locator=locator)
            values = {"user": name, "project": place(row), "role": role}
            yield Instance(values, changed(mark), steps)


@CHANGES.template(1159, "Create a new {{kind}} project named {{name}}.", test=True)
def create_project(databases: Databases) -> Iterator[Instance]:
    """Fill in a form with a choice."""
    for kind in ("Private", "Public"):
        for part in PARTS:
            name = f"my-{part.replace(' ', '-')}-plan"
            form = (Fill("Project name", name), Select("Visibility Level", kind))
            steps = (Click("link", "New project"), *form, Click("button", "Create project"))
            locator = "document.querySelector('.visibility-icon').getAttribute('title')"
            mark = shows(f"__GITLAB__/{ME}/{name}", kind, locator=locator)
            yield Instance({"kind": kind.lower(), "name": name}, changed(mark), steps)


@CHANGES.template(1160, 'Set my status on the code host to "{{text}}".')
def set_status(databases: Databases) -> Iterator[Instance]:
    """Fill in a form of one's own."""
    for part in PARTS:
        text = f"Busy with the {part}"
        form = (Fill("Your status", text), Click("button", "Update profile settings"))
        mark = shows_exactly(f"__GITLAB__/{ME}", text, outer_text(".cover-status"))
        yield Instance({"text": text}, changed(mark), (Click("link", "Edit profile"), *form))


@CHANGES.template(
    1161,
    'Create a milestone "{{title}}" in my project {{project}} that starts on {{start}} and is due '
    "on {{due}}.",
    test=True,
)
def create_milestone(databases: Databases) -> Iterator[Instance]:
    """Fill in a form with dates."""
    for row in _mine(databases):
        for day, title in ((3, "Public preview"), (10, "Feature freeze"), (17, "Party")):
            start, due = f"2026-08-{day:02}", f"2026-09-{day + 10}"
            dates = (Fill("Start date", start), Fill("Due date", due))
            form = (Fill("Title", title), *dates, Click("button", "Create milestone"))
            steps = (Click("link", "Milestones"), Click("link", "New milestone"), *form)
            marks = (
                shows("last", title, locator=outer_text("#content-body")),
                shows("last", start, locator=outer_text(".start_date")),
                shows("last", due, locator=outer_text(".due_date")),
            )
            values = {"title": title, "project": place(row), "start": start, "due": due}
            where = url(row, "milestones")
            yield Instance(values, changed(*marks, at=where), (*project(row), *steps))


@CHANGES.template(1162, 'Post "{{text}}" on the merge request "{{title}}" of {{project}}.')
def comment_merge_request(databases: Databases) -> Iterator[Instance]:
    """Write below a merge request."""
    for row, one in _merge_requests(databases):
        text = f"Thanks, {one['source']} reads well."
        steps = (*merge_request(row, one), Fill("Comment", text), Click("button", "Comment"))
        where = url(row, f"merge_requests/{one['iid']}")
        mark = shows(where, text, locator=outer_text("#notes-list"))
        yield Instance({**_named(row, one), "text": text}, changed(mark), steps)


@CHANGES.template(1163, 'Merge the request "{{title}}" of {{project}}.')
def merge(databases: Databases) -> Iterator[Instance]:
    """Press a button that only some may press."""
    for row, one in _merge_requests(databases):
        roles = {user["id"]: user["role"] for user in _members(databases, row)}
        if one["state"] == "opened" and roles.get(1) in ("Owner", "Maintainer"):
            where = url(row, f"merge_requests/{one['iid']}")
            mark = shows_exactly(where, "merged", outer_text(".merge-state"))
            steps = (*merge_request(row, one), Click("button", "Merge"))
            yield Instance(_named(row, one), changed(mark), steps)


@CHANGES.template(1164, 'Add a file {{path}} with the text "{{text}}" to my project {{project}}.')
def add_file(databases: Databases) -> Iterator[Instance]:
    """Write a file."""
    for row in _mine(databases):
        for part in PARTS[:4]:
            path, text = f"notes/{part.split()[0]}.txt", f"Remember to test the {part}"
            form = (Fill("File name", path), Fill("File text", text))
            steps = (Click("link", "Files"), Click("link", "New file"), *form)
            mark = shows(url(row, f"raw/main/{path}"), text)
            values = {"path": path, "text": text, "project": place(row)}
            commit = Click("button", "Commit changes")
            yield Instance(values, changed(mark), (*project(row), *steps, commit))


@CHANGES.template(1165, "Fork {{project}}.", test=True)
def fork(databases: Databases) -> Iterator[Instance]:
    """Copy another user's project."""
    for row in projects(databases):
        if row["space"] != ME:
            where = f"__GITLAB__/{ME}/{row['name']}"
            mark = shows(where, row["description"], locator=outer_text("#content-body"))
            steps = (*project(row), Click("button", "Fork"))
            yield Instance({"project": place(row)}, changed(mark), steps)


def _mine(databases: Databases) -> list[sqlite3.Row]:
    return [row for row in projects(databases) if row["space"] == ME]


def _members(databases: Databases, row: sqlite3.Row) -> list[sqlite3.Row]:
    query = "SELECT u.*, m.role FROM member m JOIN user u ON u.id=m.user_id WHERE m.project_id=?"
    return rows(databases["gitlab"], f"{query} ORDER BY u.id", row["id"])


def _issues(databases: Databases) -> Iterator[tuple[sqlite3.Row, sqlite3.Row]]:
    for row in projects(databases):
        query = "SELECT * FROM issue WHERE project_id=? ORDER BY id"
        for one in rows(databases["gitlab"], query, row["id"]):
            yield row, one


def _merge_requests(databases: Databases) -> Iterator[tuple[sqlite3.Row, sqlite3.Row]]:
    for row in projects(databases):
        query = "SELECT * FROM merge_request WHERE project_id=? ORDER BY id"
        for one in rows(databases["gitlab"], query, row["id"]):
            yield row, one


def _named(row: sqlite3.Row, one: sqlite3.Row) -> dict[str, str]:
    return {"title": one["title"], "project": place(row)}


def _issue_shows(row: sqlite3.Row, one: sqlite3.Row, part: str, text: str) -> dict[str, object]:
    where = url(row, f"issues/{one['iid']}")
    return shows_exactly(where, text, outer_text(f".issue-{part}"))
