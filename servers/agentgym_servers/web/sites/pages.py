"""What the embedded sites share: templates, routes, what a client sent, a database as bytes.

It knows nothing about any one site.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeAlias
from urllib.parse import urlencode

import msgspec

from agentgym_env.errors import MissingExtra
from agentgym_servers.web.sites.site import Request, Response

try:
    import jinja2
except ModuleNotFoundError as error:
    raise MissingExtra("The embedded sites need jinja2: pip install 'agentgym-sdk[web]'") from error

MAX_FIELD = 4000
"""Characters of a form's field that are read; what is beyond is cut off."""

MAX_INTEGER = 2**53

_ARGUMENT = re.compile(r"\{(\w+)\}")


class Visit(msgspec.Struct, frozen=True):
    """A request with the database that answers it; whatever it gives is safe to store."""

    database: sqlite3.Connection
    request: Request
    arguments: Mapping[str, str] = {}
    """The words of the path in place of braces."""

    def argument(self, name: str) -> str:
        """A word of the path."""
        return clean(self.arguments.get(name, ""))

    def number(self, name: str) -> int:
        """A word of the path as a number; 0, which is no row's id, if it is none."""
        return whole(self.argument(name)) or 0

    def query(self, name: str, default: str = "") -> str:
        """A field of the query."""
        return first(self.request.query, name, default)

    def sent(self, name: str, default: str = "") -> str:
        """A field of the form."""
        return first(self.request.form, name, default)

    def cookie(self, name: str) -> str:
        """A cookie of this host."""
        return clean(self.request.cookies.get(name, ""))

    def one(self, query: str, *values: object) -> sqlite3.Row | None:
        """The first row of a query, if there is any."""
        row: sqlite3.Row | None = self.database.execute(query, values).fetchone()
        return row

    def all(self, query: str, *values: object) -> list[sqlite3.Row]:
        """The rows of a query."""
        return self.database.execute(query, values).fetchall()

    def run(self, statement: str, *values: object) -> int:
        """Change the database; gives the id of the row put in last."""
        return self.database.execute(statement, values).lastrowid or 0


Handler: TypeAlias = Callable[[Visit], Response]


class Router:
    """Paths to handlers. A slash at the end makes no difference; `{word}` matches one segment."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], Handler] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Handler]] = []

    def get(self, *paths: str) -> Callable[[Handler], Handler]:
        """Let a handler answer GET of these paths."""
        return self._add("GET", paths)

    def post(self, *paths: str) -> Callable[[Handler], Handler]:
        """Let a handler answer POST to these paths."""
        return self._add("POST", paths)

    def answer(self, database: sqlite3.Connection, request: Request) -> Response | None:
        """The handler's answer, its changes committed; None if no path matches."""
        method = "GET" if request.method == "HEAD" else request.method
        path = request.path.rstrip("/") or "/"
        handler, arguments = self._exact.get((method, path)), {}
        if handler is None:
            for its_method, pattern, candidate in self._patterns:
                if its_method == method and (match := pattern.fullmatch(path)):
                    handler, arguments = candidate, match.groupdict()
                    break
            else:
                return None
        response = handler(Visit(database, request, arguments))
        database.commit()
        return response

    def _add(self, method: str, paths: Sequence[str]) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            for path in paths:
                bare = path.rstrip("/") or "/"
                if "{" not in bare:
                    self._exact[method, bare] = handler
                    continue
                parts = _ARGUMENT.split(bare)
                expression = "".join(
                    f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part)
                    for index, part in enumerate(parts)
                )
                self._patterns.append((method, re.compile(expression), handler))
            return handler

        return add


def render(package: str, template: str, /, **values: object) -> str:
    """A page from the folder `templates` of a package; every value in it is escaped."""
    return _environment(package).get_template(template).render(**values)


def redirect(location: str, cookies: Mapping[str, str | None] | None = None) -> Response:
    """Go and GET another page: the answer to a form."""
    return Response(status=302, location=location, cookies=cookies or {})


def link(path: str, query: Mapping[str, object]) -> str:
    """A path with a query; fields that are empty are left out."""
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


def clean(text: str, length: int = MAX_FIELD) -> str:
    """Text that a client sent as a database can store it: capped, and without half characters."""
    return text[:length].encode("utf-8", "replace").decode("utf-8").replace("\0", "")


def first(fields: Mapping[str, Sequence[str]], name: str, default: str = "") -> str:
    """The first value of a query's or a form's field, clean and without spaces around."""
    values = fields.get(name)
    return clean(values[0]).strip() if values else default


def whole(text: str, least: int = 0, most: int = MAX_INTEGER) -> int | None:
    """A whole number within bounds, or None."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return None
    number = int(text)
    return number if least <= number <= most else None


def make_database(
    schema: str, rows: Mapping[str, Iterable[Sequence[object]]]
) -> sqlite3.Connection:
    """A database in memory: a schema, and the rows of each table in the order of its columns."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.row_factory = sqlite3.Row
    database.executescript(schema)
    for table, values in rows.items():
        listed = list(values)
        if listed:
            marks = ", ".join("?" * len(listed[0]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", listed)
    database.commit()
    return database


def freeze(database: sqlite3.Connection) -> bytes:
    """The database as the bytes that every episode restores; equal for equal contents."""
    database.commit()
    database.execute("VACUUM")
    return database.serialize()


@cache
def _environment(package: str) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


Act: TypeAlias = Callable[[Visit, sqlite3.Row], Response]


def logged_in(visit: Visit, cookie: str) -> sqlite3.Row | None:
    """The user of a cookie's log-in."""
    token = visit.cookie(cookie)
    if not token:
        return None
    return visit.one("SELECT u.* FROM login l JOIN user u ON u.id=l.user_id WHERE token=?", token)


def only_logged_in(act: Act, cookie: str, sign_in: str) -> Handler:
    """Send who is not logged in to the log-in page at `sign_in`."""

    def guarded(visit: Visit) -> Response:
        who = logged_in(visit, cookie)
        return act(visit, who) if who else redirect(sign_in)

    return guarded
