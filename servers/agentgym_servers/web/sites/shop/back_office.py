"""The shop's admin: login, frame and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from agentgym_servers.web.sites.pages import Handler, Router, Visit, redirect, render, whole
from agentgym_servers.web.sites.shop.browse import page_links
from agentgym_servers.web.sites.shop.data import ADMIN, ADMIN_PASSWORD, PACKAGE, money, number_of
from agentgym_servers.web.sites.shop.shopper import begin_visit, notice, take_notice
from agentgym_servers.web.sites.site import Response

ROUTES = Router()

HOME = "/admin/"

DASHBOARD = "/admin/dashboard/"

_PER_PAGE = 20

_DATE = re.compile(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]")

_OPERATORS = {"like": "LIKE", "is": "=", "from": ">=", "to": "<="}


class Filter(msgspec.Struct, frozen=True):
    """A field above a table that narrows it down."""

    label: str
    name: str
    column: str
    kind: str = "like"
    """`like`, `is`, `from` or `to`; the last two compare as text."""
    options: Sequence[str] = ()
    """What can be chosen; anything can be typed if there are none."""


class Grid(msgspec.Struct, frozen=True):
    """A table of the admin. The query's first columns, `row_link` and `row_id`, are not shown."""

    title: str
    path: str
    query: str
    columns: Sequence[str]
    """What the columns are called, by which the rows can be sorted, too."""
    filters: Sequence[Filter] = ()
    order: str = "row_id DESC"
    cents: Sequence[str] = ()
    """The columns with amounts of money."""
    new: str = ""
    """Where a new row is made, if it can be."""


def staff(handler: Handler) -> Handler:
    """Send whoever is not logged in to the log-in."""

    def handle(visit: Visit) -> Response:
        return handler(visit) if token_of_staff(visit) else redirect(HOME)

    return handle


def token_of_staff(visit: Visit) -> str:
    """The cookie of a logged-in admin, or nothing."""
    token = visit.cookie("admin")
    known = visit.one("SELECT 1 FROM visit WHERE token = ? AND admin = 1", token)
    return token if known else ""


def staff_page(visit: Visit, template: str, *, status: int = 200, **values: object) -> Response:
    """A page of the admin, with its menu."""
    token = token_of_staff(visit)
    notice = take_notice(visit, token)
    frame = {"staff": token, "notice": notice, "money": money, "number_of": number_of}
    return Response(render(PACKAGE, template, **frame, **values), status)


def staff_back(visit: Visit, text: str, location: str) -> Response:
    """Go to a page of the admin that says how the form was taken."""
    notice(visit, token_of_staff(visit), text)
    return redirect(location)


def staff_missing(visit: Visit) -> Response:
    """The admin's page for what is not there."""
    words = "The page you asked for is not there."
    return staff_page(visit, "admin_plain.html", status=404, title="404 Error", words=words)


def grid_page(visit: Visit, grid: Grid) -> Response:
    """A table as its filters and its order say."""
    conditions, values, active = [], [], []
    given = {one.name: visit.query(one.name)[:100] for one in grid.filters}
    for one in grid.filters:
        text = given[one.name]
        if text:
            conditions.append(f'"{one.column}" {_OPERATORS[one.kind]} ?')
            values.append(f"%{text}%" if one.kind == "like" else text)
            active.append(f"{one.label}: {text}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    sort = visit.query("sort")
    descending = visit.query("dir") == "desc"
    order = (
        f'"{sort}"{" DESC" if descending else ""}, row_id' if sort in grid.columns else grid.order
    )
    inner = f"SELECT * FROM ({grid.query}){where}"
    counted = visit.one(f"SELECT count(*) AS count FROM ({inner})", *values)
    count = int(counted["count"]) if counted else 0
    pages = max(1, -(-count // _PER_PAGE))
    current = whole(visit.query("p"), 1, pages) or 1
    rows = visit.all(
        f"{inner} ORDER BY {order} LIMIT {_PER_PAGE} OFFSET {_PER_PAGE * (current - 1)}", *values
    )
    sorting = {"sort": sort if sort in grid.columns else "", "dir": "desc" if descending else ""}
    return staff_page(
        visit,
        "admin_grid.html",
        grid=grid,
        given=given,
        active=active,
        rows=[tuple(row) for row in rows],
        count=count,
        pages=page_links(grid.path, {**given, **sorting}, current, pages),
        sort=sorting["sort"],
        direction=sorting["dir"],
    )


def date(text: str) -> str:
    """A day as 2023-05-31, or nothing."""
    return text if _DATE.fullmatch(text) else ""


@ROUTES.get("/", "/admin", "/admin/admin")
def login_form(visit: Visit) -> Response:
    """The log-in form."""
    if token_of_staff(visit):
        return redirect(DASHBOARD)
    return staff_page(visit, "admin_login.html", failed=False)


@ROUTES.post("/admin", "/admin/admin")
def login(visit: Visit) -> Response:
    """Log the admin in."""
    if (visit.sent("login[username]"), visit.sent("login[password]")) != (ADMIN, ADMIN_PASSWORD):
        return staff_page(visit, "admin_login.html", failed=True)
    return redirect(DASHBOARD, {"admin": begin_visit(visit, admin=1)})


@ROUTES.get("/admin/auth/logout/")
def logout(visit: Visit) -> Response:
    """Log the admin out."""
    visit.run("DELETE FROM visit WHERE token = ? AND admin = 1", visit.cookie("admin"))
    return redirect(HOME, {"admin": None})
