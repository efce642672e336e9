"""The admin's dashboard, orders and reports."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from agentgym_servers.web.sites.pages import Router, Visit
from agentgym_servers.web.sites.shop.back_office import (
    DASHBOARD,
    Filter,
    Grid,
    date,
    grid_page,
    staff,
    staff_back,
    staff_missing,
    staff_page,
)
from agentgym_servers.web.sites.shop.data import NOW, STATUSES
from agentgym_servers.web.sites.shop.orders import cancel_order, lines_of
from agentgym_servers.web.sites.site import Response

ROUTES = Router()

_OPEN = ("Pending", "Processing", "On Hold", "Suspected Fraud")

_PERIODS = {"day": 10, "month": 7, "year": 4}

_VIEW = "/admin/sales/order/view/order_id/"

_GRID = Grid(
    title="Orders",
    path="/admin/sales/order/",
    query="""
        SELECT '/admin/sales/order/view/order_id/' || o.id || '/' AS row_link, o.id AS row_id,
            printf('%09d', o.id) AS "ID", o.placed AS "Purchase Date",
            c.first || ' ' || c.last AS "Customer", o.total AS "Grand Total",
            o.status AS "Status"
        FROM purchase o JOIN customer c ON c.id = o.customer
    """,
    columns=("ID", "Purchase Date", "Customer", "Grand Total", "Status"),
    filters=(
        Filter("ID", "increment_id", "ID"),
        Filter("Purchased from", "created_from", "Purchase Date", "from"),
        Filter("Purchased before", "created_to", "Purchase Date", "to"),
        Filter("Customer", "name", "Customer"),
        Filter("Status", "status", "Status", "is", STATUSES),
    ),
    cents=("Grand Total",),
)


@ROUTES.get(DASHBOARD)
@staff
def dashboard(visit: Visit) -> Response:
    """What sold, what was ordered last, and what people look for."""
    return staff_page(
        visit,
        "admin_dashboard.html",
        sales=visit.one("SELECT sum(total) AS sum FROM purchase WHERE status <> 'Canceled'"),
        last=visit.all(
            "SELECT o.*, c.first, c.last FROM purchase o JOIN customer c ON c.id = o.customer"
            " ORDER BY o.id DESC LIMIT 5"
        ),
        best=_bestsellers(visit, "", "", 5),
        terms=visit.all("SELECT * FROM term ORDER BY uses DESC, id LIMIT 5"),
    )


@ROUTES.get(_GRID.path)
@staff
def orders(visit: Visit) -> Response:
    """All orders."""
    return grid_page(visit, _GRID)


@ROUTES.get(_VIEW + "{id}/")
@staff
def order(visit: Visit) -> Response:
    """One order."""
    found = visit.one(
        "SELECT o.*, c.first, c.last, c.email FROM purchase o"
        " JOIN customer c ON c.id = o.customer WHERE o.id = ?",
        visit.number("id"),
    )
    if found is None:
        return staff_missing(visit)
    return staff_page(
        visit,
        "admin_order.html",
        order=found,
        lines=lines_of(visit, found["id"]),
        notes=visit.all("SELECT * FROM note WHERE purchase = ? ORDER BY id DESC", found["id"]),
        is_open=found["status"] in _OPEN,
        statuses=STATUSES,
    )


@ROUTES.post("/admin/sales/order/{act}/order_id/{id}/")
@staff
def change(visit: Visit) -> Response:
    """Cancel an order, ship it, or say something about it."""
    found = visit.one("SELECT * FROM purchase WHERE id = ?", visit.number("id"))
    act = visit.argument("act")
    if found is None or act not in ("cancel", "ship", "addComment"):
        return staff_missing(visit)
    where = f"{_VIEW}{found['id']}/"
    status, text = found["status"], visit.sent("comment")
    if act == "addComment":
        if not text:
            return staff_back(visit, "Please enter a comment.", where)
        words = "You added a comment."
    elif found["status"] not in _OPEN:
        return staff_back(visit, "You can not change this order any more.", where)
    elif act == "cancel":
        cancel_order(visit, found["id"])
        return staff_back(visit, "You canceled the order.", where)
    else:
        tracking = visit.sent("tracking")[:80]
        status, words = "Complete", "The shipment has been created."
        text = f"Shipped with tracking number {tracking}." if tracking else "Shipped."
    visit.run("UPDATE purchase SET status = ? WHERE id = ?", status, found["id"])
    visit.run("INSERT INTO note VALUES (NULL, ?, ?, ?, ?)", found["id"], NOW, status, text)
    return staff_back(visit, words, where)


@ROUTES.get("/admin/reports/report_sales/bestsellers/")
@staff
def bestsellers(visit: Visit) -> Response:
    """The products of a period by how many were sold; canceled orders do not count."""
    begin, end = date(visit.query("from")), date(visit.query("to"))
    rows = [(row["name"], str(row["sold"])) for row in _bestsellers(visit, begin, end, 20)]
    return _report(visit, "Bestsellers Report", begin, end, ("Product", "Order Quantity"), rows)


@ROUTES.get("/admin/reports/report_sales/sales/")
@staff
def sales(visit: Visit) -> Response:
    """How many orders were placed and for how much; canceled orders do not count."""
    begin, end = date(visit.query("from")), date(visit.query("to"))
    period = visit.query("period_type", "month")
    length = _PERIODS.get(period, 7)
    found = visit.all(
        f"SELECT substr(placed, 1, {length}) AS period, count(*) AS count, sum(total) AS sum"
        " FROM purchase WHERE status <> 'Canceled' AND placed >= ? AND placed <= ?"
        " GROUP BY period ORDER BY period LIMIT 400",
        begin,
        f"{end or '9999'} 24",
    )
    rows = [(row["period"], str(row["count"]), f"${row['sum'] / 100:.2f}") for row in found]
    columns = ("Interval", "Orders", "Sales Total")
    return _report(visit, "Orders Report", begin, end, columns, rows, period, tuple(_PERIODS))


def _report(
    visit: Visit,
    title: str,
    begin: str,
    end: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    period: str = "",
    periods: tuple[str, ...] = (),
) -> Response:
    return staff_page(
        visit,
        "admin_report.html",
        title=title,
        path=visit.request.path,
        begin=begin,
        end=end,
        columns=columns,
        rows=rows,
        period=period,
        periods=periods,
    )


def _bestsellers(visit: Visit, begin: str, end: str, count: int) -> list[sqlite3.Row]:
    return visit.all(
        "SELECT p.id, p.name, p.price, sum(l.quantity) AS sold FROM line l"
        " JOIN purchase o ON o.id = l.purchase JOIN product p ON p.id = l.product"
        " WHERE o.status <> 'Canceled' AND o.placed >= ? AND o.placed <= ?"
        f" GROUP BY p.id ORDER BY sold DESC, p.id LIMIT {count}",
        begin,
        f"{end or '9999'} 24",
    )
