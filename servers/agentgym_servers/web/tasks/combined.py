"""The tasks on two sites: what one shows is searched for, or written, on the other."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from agentgym_servers.web.sites.code_host import data as code_data
from agentgym_servers.web.sites.code_host.data import ACCOUNT
from agentgym_servers.web.sites.code_host.ways import place, project, projects, url
from agentgym_servers.web.sites.forum import data as forum_data
from agentgym_servers.web.sites.forum.data import BOARDS
from agentgym_servers.web.sites.map import site as map_data
from agentgym_servers.web.sites.map.site import route
from agentgym_servers.web.sites.map.tasks import directions, places, to_place
from agentgym_servers.web.sites.wiki import site as wiki_data
from agentgym_servers.web.sites.wiki.tasks import facts, to_article
from agentgym_servers.web.tasks.scripts import Click, Fill, Goto, ScriptedTask, Select
from agentgym_servers.web.tasks.task_forms import (
    Databases,
    Instance,
    TaskBook,
    answered,
    arrived,
    changed,
    outer_text,
    rows,
    shows,
)

WIKI_MAP: Final = TaskBook("wikipedia", "map")
FORUM_CODE: Final = TaskBook("reddit", "gitlab")
CODE_WIKI: Final = TaskBook("gitlab", "wikipedia")
BOOKS: Final = (WIKI_MAP, FORUM_CODE, CODE_WIKI)


def tasks(seed: int) -> list[ScriptedTask]:
    """The tasks of two sites over the data of a seed."""
    databases = {
        "reddit": forum_data.make_database(seed),
        "gitlab": code_data.make_database(seed),
        "wikipedia": wiki_data.make_database(seed),
        "map": map_data.make_database(seed),
    }
    return [task for book in BOOKS for task in book.tasks(databases, seed)]


@WIKI_MAP.template(
    1401, "How far is it to drive from {{place}} to the town where {{person}} was born?"
)
def way_to_birthplace(databases: Databases) -> Iterator[Instance]:
    """Read a fact, and ask for a way to it."""
    starts = places(databases)
    for number, (person, name) in enumerate(facts(databases, "person", "Birthplace")):
        start, town = starts[(number * 11) % len(starts)], _town(databases, name)
        if start["town"] == name:
            continue
        answer = f"{route(start, town, 'car').kilometres}km"
        values = {"place": start["name"], "person": person}
        steps = (*to_article(person), Goto("__MAP__/"), *directions(start, town, "car"))
        yield Instance(values, answered(answer), steps, answer)


@WIKI_MAP.template(
    1402,
    "What is the phone number of the public library in the town where {{person}} was born?",
    test=True,
)
def library_phone(databases: Databases) -> Iterator[Instance]:
    """Read a fact, and look a place up."""
    for person, name in facts(databases, "person", "Birthplace"):
        library = _place(databases, "library", name)
        steps = (*to_article(person), Goto("__MAP__/"), *to_place(library))
        phone = library["phone"]
        yield Instance({"person": person}, answered(phone), steps, phone)


@WIKI_MAP.template(
    1403, 'Show me on the map the main railway station of the town where "{{book}}" is set.'
)
def station(databases: Databases) -> Iterator[Instance]:
    """Read a fact, and open a place."""
    for book, name in facts(databases, "book", "Set in"):
        row = _place(databases, "station", name)
        steps = (*to_article(book), Goto("__MAP__/"), *to_place(row))
        yield Instance({"book": book}, arrived(f"__MAP__/way/{row['id']}"), steps)


@FORUM_CODE.template(
    1404,
    'Post in the {{forum}} forum, with the title "{{title}}", the command to clone {{project}} '
    "with SSH.",
)
def post_clone(databases: Databases) -> Iterator[Instance]:
    """Copy a line from the code host into a submission."""
    for (forum, _, _), row in zip(BOARDS, projects(databases), strict=True):
        command = f"git clone ssh://git@code.test:2222/{place(row)}.git"
        title = f"A project for us: {row['name']}"
        form = (Fill("Title", title), Fill("Body", command), Select("Forum", forum))
        send = (*form, Click("button", "Create submission"))
        steps = (Goto("__GITLAB__/"), *project(row), Goto("__REDDIT__/submit"), *send)
        where = "func:reddit_get_post_url('__last_url__')"
        mark = shows(where, title, command, locator=outer_text(".submission__inner"))
        values = {"forum": forum, "title": title, "project": place(row)}
        yield Instance(values, changed(mark, at=f"__REDDIT__/f/{forum}"), steps)


@CODE_WIKI.template(
    1405,
    "Add a file {{path}} to my project {{project}} that names all novels by {{author}} in the "
    "encyclopedia.",
    test=True,
)
def list_novels(databases: Databases) -> Iterator[Instance]:
    """Gather titles, and write them into a file."""
    novels: dict[str, list[str]] = {}
    for title, author in facts(databases, "book", "Author"):
        novels.setdefault(author, []).append(title)
    own = [row for row in projects(databases) if row["space"] == ACCOUNT[0]]
    for number, (author, titles) in enumerate(novels.items()):
        row, path = own[number % len(own)], f"{author.split()[-1].lower()}-{number}.txt"
        form = (Fill("File name", path), Fill("File text", "\n".join(titles)))
        write = (Goto(url(row, "new/main")), *form, Click("button", "Commit changes"))
        steps = (Goto("__WIKIPEDIA__/"), *to_article(author), *write)
        mark = shows(url(row, f"raw/main/{path}"), *titles)
        values = {"path": path, "project": place(row), "author": author}
        yield Instance(values, changed(mark), steps)


def _town(databases: Databases, name: str) -> sqlite3.Row:
    return rows(databases["map"], "SELECT * FROM place WHERE name=?", name)[0]


def _place(databases: Databases, kind: str, town: str) -> sqlite3.Row:
    query = "SELECT * FROM place WHERE kind=? AND town=?"
    return rows(databases["map"], query, kind, town)[0]
