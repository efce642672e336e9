"""The encyclopedia as a site: search and articles."""

from __future__ import annotations

import re
import sqlite3
from typing import Final

from agentgym_servers.web.pages import Router, Visit, render
from agentgym_servers.web.site import Request, Response
from agentgym_servers.web.wiki import data

ROUTER: Final = Router()
MOST: Final = 50
_LINK: Final = re.compile(r"\[\[([^\[\]]+)\]\]")


class Wiki:
    """Articles of an invented country, at the paths of an offline encyclopedia's reader."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """The encyclopedia as every episode begins with it."""
        return data.make_database(seed)

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        """Answer a request."""
        return ROUTER.answer(database, request) or _missing()


def logged_in_cookies(account: str) -> dict[str, str]:
    """None: nobody logs in to the encyclopedia."""
    return {}


def linked(text: str) -> list[tuple[str, str]]:
    """A text in pieces: what it says, and the article that the piece links to, if any."""
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
    pattern = visit.asked("pattern")[:200]
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
    told = [(fact["label"], linked(fact["text"])) for fact in facts]
    return _page("article.html", facts=told, others=others, **values)


def _page(template: str, /, **values: object) -> Response:
    return Response(render(__package__, template, **values))


def _missing() -> Response:
    return Response(render(__package__, "missing.html"), 404)
