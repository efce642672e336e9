"""The ways to a project, an issue and a merge request, as tasks take them."""

from __future__ import annotations

import sqlite3

from agentgym_servers.web.tasks.scripts import Click, Fill, Step
from agentgym_servers.web.tasks.task_forms import Databases, rows


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
