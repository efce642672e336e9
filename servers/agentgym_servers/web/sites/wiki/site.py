"""The encyclopedia as a site: its articles, and search in them."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Sequence
from typing import Final, TypeVar

from agentgym_servers.web.sites import pages
from agentgym_servers.web.sites.pages import Router, Visit, render
from agentgym_servers.web.sites.site import REGIONS, TOWNS, Request, Response

COUNTRY: Final = "Veridia"

PEOPLE: Final = 45

_SCHEMA: Final = """
CREATE TABLE article(id INTEGER PRIMARY KEY, title TEXT UNIQUE COLLATE NOCASE, kind TEXT,
  text TEXT);
CREATE TABLE fact(article_id INTEGER, label TEXT, text TEXT, PRIMARY KEY(article_id, label));
CREATE TABLE entry(article_id INTEGER, position INTEGER, first TEXT, second TEXT, third TEXT,
  PRIMARY KEY(article_id, position));
"""

_FIRST: Final = (
    "Alma",
    "Bertil",
    "Corin",
    "Dagny",
    "Edda",
    "Florian",
    "Gudrun",
    "Henrik",
    "Isolde",
)

_LAST: Final = ("Ashgrove", "Birkholm", "Calloway", "Drummore", "Elsworth")

_OCCUPATIONS: Final = ("novelist", "botanist", "engineer", "painter", "astronomer", "composer")

_MONTHS: Final = ("January", "March", "April", "June", "August", "October", "December")

_PEAKS: Final = (
    "Anvil Peak|Broken Tooth|Cold Shoulder|Drummer's Rest|Eagle Stair|Frost Crown|Grey Widow|"
    "High Lantern|Iron Saddle|Jackdaw Crag|Kettle Top|Long Sorrow|Mount Orrin|North Needle|Old Bell"
)

_RIVERS: Final = "Amsel|Brenner|Corve|Dellen|Esk Water|Fallow|Glimmer|Harrow|Isk|Jorran|Kelder|Lune"

_SUBJECTS: Final = ("Clockmaker", "Lighthouse", "Orchard", "Harbour", "Winter", "Garden")

_FORMS: Final = (
    "The Last {}",
    "A Song for the {}",
    "{} and Shadow",
    "Return to the {}",
    "Under the {}",
)

_EVENTS: Final = ("Great Flood", "Treaty", "Fire", "Exhibition", "Long Strike")

_Choice = TypeVar("_Choice")


class _Writer:
    """Articles as they are added."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.database = pages.make_database(_SCHEMA, {})

    def add(
        self, title: str, kind: str, text: str, facts: dict[str, str], table: Sequence[str] = ()
    ) -> None:
        """Write an article; a row of its table is three cells between bars."""
        statement = "INSERT INTO article(title, kind, text) VALUES(?,?,?)"
        number = self.database.execute(statement, (title, kind, text)).lastrowid
        rows = [(number, label, value) for label, value in facts.items()]
        self.database.executemany("INSERT INTO fact VALUES(?,?,?)", rows)
        entries = [(number, position, *row.split("|")) for position, row in enumerate(table)]
        self.database.executemany("INSERT INTO entry VALUES(?,?,?,?,?)", entries)

    def number(self, least: int, most: int) -> int:
        """A number within bounds."""
        return least + int(self.chance.random() * (most - least))

    def pick(self, among: Sequence[_Choice]) -> _Choice:
        """One of several."""
        return among[int(self.chance.random() * len(among))]

    def distinct(self, count: int, least: int, step: int) -> list[int]:
        """Numbers in any order, no two of them equal."""
        numbers = range(least, least + count * step, step)
        return sorted(numbers, key=lambda _: self.chance.random())


def make_database(seed: int) -> sqlite3.Connection:
    """All articles; equal for equal seeds."""
    writer = _Writer(seed)
    _people(writer)
    _towns(writer)
    _mountains(writer)
    _rivers(writer)
    _books(writer)
    _events(writer)
    regions = [f"[[{region}]]|region|{COUNTRY}" for region in REGIONS]
    text = f"{COUNTRY} is a country of {len(REGIONS)} regions and {len(TOWNS)} towns."
    writer.add(COUNTRY, "country", text, {"Capital": "[[Aldermouth]]"}, regions)
    writer.database.commit()
    return writer.database


def people() -> list[str]:
    """The names of the persons of whom there is an article."""
    return [f"{first} {last}" for last in _LAST for first in _FIRST][:PEOPLE]


def _people(writer: _Writer) -> None:
    for name in people():
        town, work = writer.pick(TOWNS), writer.pick(_OCCUPATIONS)
        year = writer.number(1790, 1930)
        born = f"{writer.number(1, 28)} {writer.pick(_MONTHS)} {year}"
        died = f"{writer.number(1, 28)} {writer.pick(_MONTHS)} {year + writer.number(35, 60)}"
        facts = {"Born": born, "Birthplace": f"[[{town.name}]]", "Died": died, "Occupation": work}
        text = f"{name} was a {work} from [[{town.name}]] in [[{town.region}]], {COUNTRY}."
        writer.add(name, "person", text.replace(" a a", " an a").replace(" a e", " an e"), facts)


def _towns(writer: _Writer) -> None:
    sizes = writer.distinct(len(TOWNS), 14_210, 7_431)
    rivers = _RIVERS.split("|")
    table = []
    for town, size, river in zip(TOWNS, sizes, rivers, strict=True):
        founded, mayor = str(writer.number(1100, 1600)), writer.pick(people())
        facts = {"Region": f"[[{town.region}]]", "Population": str(size), "Founded": founded}
        facts |= {"River": f"[[River {river}]]", "First mayor": f"[[{mayor}]]"}
        text = f"{town.name} is a town on the [[River {river}]]. See [[University of {town.name}]]."
        writer.add(town.name, "town", text, facts)
        table.append(f"[[{town.name}]]|{size}|[[{town.region}]]")
        students = str(writer.number(2, 30) * 513)
        facts = {"Town": f"[[{town.name}]]", "Founded": str(writer.number(1600, 1950))}
        facts |= {"Students": students, "Founder": f"[[{writer.pick(people())}]]"}
        text = f"The University of {town.name} teaches in [[{town.name}]]."
        writer.add(f"University of {town.name}", "university", text, facts)
    for region in REGIONS:
        inside = [f"[[{town.name}]]|town|{region}" for town in TOWNS if town.region == region]
        text = f"{region} is a region of [[{COUNTRY}]]. See [[List of mountains of {COUNTRY}]]."
        writer.add(region, "region", text, {"Country": f"[[{COUNTRY}]]"}, inside)
    writer.add(f"List of towns of {COUNTRY}", "list", "Towns by population.", {}, table)


def _mountains(writer: _Writer) -> None:
    names = _PEAKS.split("|")
    table = []
    for name, height in zip(names, writer.distinct(len(names), 1312, 87), strict=True):
        region, climber = writer.pick(REGIONS), writer.pick(people())
        facts = {"Height": f"{height} m", "Region": f"[[{region}]]"}
        facts |= {"First climbed by": f"[[{climber}]]", "In": str(writer.number(1820, 1950))}
        writer.add(name, "mountain", f"{name} is a mountain in [[{region}]].", facts)
        table.append(f"[[{name}]]|{height} m|[[{region}]]")
    writer.add(f"List of mountains of {COUNTRY}", "list", "Mountains.", {}, table)


def _rivers(writer: _Writer) -> None:
    names = [f"River {name}" for name in _RIVERS.split("|")]
    table = []
    for name, length in zip(names, writer.distinct(len(names), 61, 23), strict=True):
        source = writer.pick(_PEAKS.split("|"))
        facts = {"Length": f"{length} km", "Source": f"[[{source}]]"}
        writer.add(name, "river", f"The {name} rises at [[{source}]].", facts)
        table.append(f"[[{name}]]|{length} km|[[{source}]]")
    writer.add(f"List of rivers of {COUNTRY}", "list", "Rivers.", {}, table)


def _books(writer: _Writer) -> None:
    titles = [form.format(subject) for form in _FORMS for subject in _SUBJECTS]
    table = []
    for title, year in zip(titles, writer.distinct(len(titles), 1851, 4), strict=True):
        author = writer.pick(people()[:12])
        facts = {"Author": f"[[{author}]]", "Published": str(year)}
        facts |= {"Set in": f"[[{writer.pick(TOWNS).name}]]", "Pages": str(writer.number(90, 700))}
        writer.add(title, "book", f"{title} is a novel by [[{author}]].", facts)
        table.append(f"[[{title}]]|[[{author}]]|{year}")
    writer.add(f"List of novels of {COUNTRY}", "list", "Novels.", {}, table)


def _events(writer: _Writer) -> None:
    for number in range(15):
        town, event = TOWNS[(number * 5) % len(TOWNS)], _EVENTS[number % len(_EVENTS)]
        year = str(writer.number(1700, 1960))
        facts = {"Place": f"[[{town.name}]]", "Year": year}
        title = f"{event} of {town.name}"
        writer.add(title, "event", f"The {title} took place in {year}.", facts)


ROUTER: Final = Router()

MOST: Final = 50

_LINK: Final = re.compile(r"\[\[([^\[\]]+)\]\]")


class Wiki:
    """Articles of an invented country, at the paths of an offline encyclopedia's reader."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """The encyclopedia as every episode begins with it."""
        return make_database(seed)

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        """Answer a request."""
        return ROUTER.answer(database, request) or _missing()


def logged_in_cookies(account: str) -> dict[str, str]:
    """None: nobody logs in to the encyclopedia."""
    return {}


def linked(text: str) -> list[tuple[str, str]]:
    """A text in pieces: the words, and the article that the piece links to, if any."""
    parts = _LINK.split(text)
    return [(part, part if index % 2 else "") for index, part in enumerate(parts) if part]


def plain(text: str) -> str:
    """A text without its links."""
    return _LINK.sub(r"\1", text)


@ROUTER.get("/")
def front(visit: Visit) -> Response:
    """The lists, and the country."""
    rows = visit.all("SELECT title FROM article WHERE kind IN ('list', 'country') ORDER BY title")
    return _page("search.html", heading="Welcome", rows=rows)


@ROUTER.get("/search")
def search(visit: Visit) -> Response:
    """Articles that have a pattern, those with it in the title first."""
    pattern = visit.query("pattern")[:200]
    rows = visit.all(
        "SELECT title FROM article WHERE instr(lower(title || ' ' || text), lower(?)) > 0"
        " ORDER BY title != ?, instr(lower(title), lower(?)) = 0, title LIMIT ?",
        *(pattern, pattern, pattern, MOST),
    )
    return _page("search.html", heading=f"Results for {pattern}", rows=rows if pattern else [])


@ROUTER.get("/A/{title}")
def article(visit: Visit) -> Response:
    """One article, and which others link to it."""
    title = visit.argument("title").replace("_", " ")
    row = visit.one("SELECT * FROM article WHERE title=?", title)
    if row is None:
        return _missing()
    facts = visit.all("SELECT * FROM fact WHERE article_id=?", row["id"])
    entries = visit.all("SELECT * FROM entry WHERE article_id=? ORDER BY position", row["id"])
    others = visit.all(
        "SELECT DISTINCT a.title FROM fact f JOIN article a ON a.id=f.article_id"
        " WHERE f.text=? ORDER BY a.title",
        f"[[{row['title']}]]",
    )
    cells = [[linked(entry[name]) for name in ("first", "second", "third")] for entry in entries]
    values = {"title": row["title"], "passages": [linked(row["text"])], "entries": cells}
    listed = [(fact["label"], linked(fact["text"])) for fact in facts]
    return _page("article.html", facts=listed, others=others, **values)


def _page(template: str, /, **values: object) -> Response:
    return Response(render(__package__, template, **values))


def _missing() -> Response:
    return Response(render(__package__, "missing.html"), 404)
