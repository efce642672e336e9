"""The tasks of the encyclopedia, with answers from its facts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from agentgym_servers.web.sites.site import REGIONS
from agentgym_servers.web.sites.wiki import site
from agentgym_servers.web.sites.wiki.site import plain
from agentgym_servers.web.tasks.scripts import Click, Fill, ScriptedTask, Step
from agentgym_servers.web.tasks.task_forms import (
    Databases,
    Instance,
    TaskBook,
    answered,
    answered_exactly,
    arrived,
    rows,
)

BOOK: Final = TaskBook("wikipedia")


def tasks(seed: int) -> list[ScriptedTask]:
    """The encyclopedia's tasks over the data of a seed."""
    return BOOK.tasks({"wikipedia": site.make_database(seed)}, seed)


@BOOK.template(1301, "When was {{person}} born?")
def born(databases: Databases) -> Iterator[Instance]:
    """Read a fact."""
    for name, date in facts(databases, "person", "Born"):
        yield Instance({"person": name}, answered(date), to_article(name), date)


@BOOK.template(1302, "What is the population of {{town}}? Answer with the number only.")
def population(databases: Databases) -> Iterator[Instance]:
    """Read a fact."""
    for name, size in facts(databases, "town", "Population"):
        yield Instance({"town": name}, answered_exactly(size), to_article(name), size)


@BOOK.template(1303, 'In which town was the author of "{{book}}" born?', test=True)
def author_birthplace(databases: Databases) -> Iterator[Instance]:
    """Follow a link to a fact."""
    birthplaces = dict(facts(databases, "person", "Birthplace"))
    for title, author in facts(databases, "book", "Author"):
        steps = (*to_article(title), Click("link", author))
        town = birthplaces[author]
        yield Instance({"book": title}, answered(town), steps, town)


@BOOK.template(1304, "Which is the highest mountain in {{region}}?")
def highest(databases: Databases) -> Iterator[Instance]:
    """Compare the rows of a table."""
    heights = dict(facts(databases, "mountain", "Height"))
    for region in REGIONS:
        inside = [n for n, r in facts(databases, "mountain", "Region") if r == region]
        if len(inside) > 1:
            name = max(inside, key=lambda peak: int(heights[peak].split()[0]))
            steps = (Click("link", f"List of mountains of {site.COUNTRY}"),)
            yield Instance({"region": region}, answered(name), steps, name)


@BOOK.template(1305, 'Open the article on the author of "{{book}}".')
def open_author(databases: Databases) -> Iterator[Instance]:
    """Follow a link."""
    for title, author in facts(databases, "book", "Author"):
        steps = (*to_article(title), Click("link", author))
        yield Instance({"book": title}, arrived(address(author)), steps)


@BOOK.template(1306, 'Search the encyclopedia for "{{words}}".')
def search(databases: Databases) -> Iterator[Instance]:
    """Fill in a form."""
    for name, _ in facts(databases, "river", "Length"):
        where = f"__WIKIPEDIA__/search?{urlencode({'pattern': name})}"
        yield Instance({"words": name}, arrived(where), to_article(name)[:2])


@BOOK.template(1307, "How long is the {{river}}, and where does it rise?", test=True)
def river(databases: Databases) -> Iterator[Instance]:
    """Read two facts."""
    sources = dict(facts(databases, "river", "Source"))
    for name, length in facts(databases, "river", "Length"):
        parts = (length, sources[name])
        yield Instance({"river": name}, answered(*parts), to_article(name), ", ".join(parts))


@BOOK.template(1308, "Who was the first to climb {{mountain}}, and in which year?")
def climber(databases: Databases) -> Iterator[Instance]:
    """Read two facts."""
    years = dict(facts(databases, "mountain", "In"))
    for name, person in facts(databases, "mountain", "First climbed by"):
        parts = (person, years[name])
        yield Instance({"mountain": name}, answered(*parts), to_article(name), ", ".join(parts))


def facts(databases: Databases, kind: str, label: str) -> list[tuple[str, str]]:
    """The title of each article of a kind, and one of its facts without links."""
    found: list[sqlite3.Row] = rows(
        databases["wikipedia"],
        "SELECT a.title, f.text FROM article a JOIN fact f ON f.article_id=a.id"
        " WHERE a.kind=? AND f.label=? ORDER BY a.id",
        *(kind, label),
    )
    return [(row["title"], plain(row["text"])) for row in found]


def to_article(title: str) -> tuple[Step, ...]:
    """From anywhere in the encyclopedia to an article."""
    search = (Fill("Search the encyclopedia", title), Click("button", "Search"))
    return (*search, Click("link", title))


def address(title: str) -> str:
    """The address of an article."""
    return f"__WIKIPEDIA__/A/{title.replace(' ', '_')}"
