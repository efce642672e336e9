"""The shop's admin: login, tables and forms of the catalog, sales and customers."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

import msgspec

from agentgym_servers.web.sites.pages import Handler, Router, Visit, redirect, render, whole
from agentgym_servers.web.sites.shop.account import cancel_order, lines_of
from agentgym_servers.web.sites.shop.browse import page_links
from agentgym_servers.web.sites.shop.data import (
    ADMIN,
    ADMIN_PASSWORD,
    GROUPS,
    NOW,
    PACKAGE,
    REVIEW_STATUSES,
    STATUSES,
    money,
    number_of,
)
from agentgym_servers.web.sites.shop.shopper import begin_visit, cents, notice, take_notice
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


CATALOG_ROUTES = Router()

_MAX_STOCK = 1_000_000

_PRODUCTS = Grid(
    title="Products",
    path="/admin/catalog/product/",
    query="""
        SELECT '/admin/catalog/product/edit/id/' || id || '/' AS row_link, id AS row_id,
            name AS "Name", sku AS "SKU", price AS "Price", quantity AS "Quantity",
            CASE enabled WHEN 1 THEN 'Enabled' ELSE 'Disabled' END AS "Status"
        FROM product
    """,
    columns=("Name", "SKU", "Price", "Quantity", "Status"),
    filters=(
        Filter("Name", "name", "Name"),
        Filter("SKU", "sku", "SKU"),
        Filter("Status", "status", "Status", "is", ("Enabled", "Disabled")),
    ),
    order="row_id",
    cents=("Price",),
)

_CUSTOMERS = Grid(
    title="Customers",
    path="/admin/customer/index/",
    query="""
        SELECT '/admin/customer/index/edit/id/' || id || '/' AS row_link, id AS row_id,
            first || ' ' || last AS "Name", email AS "Email", class AS "Group",
            substr(since, 1, 10) AS "Customer Since"
        FROM customer
    """,
    columns=("Name", "Email", "Group", "Customer Since"),
    filters=(
        Filter("Name", "name", "Name"),
        Filter("Email", "email", "Email"),
        Filter("Group", "group", "Group", "is", GROUPS),
    ),
    order="row_id",
)

_REVIEWS = Grid(
    title="Reviews",
    path="/admin/review/product/",
    query="""
        SELECT '/admin/review/product/edit/id/' || r.id || '/' AS row_link, r.id AS row_id,
            r.id AS "ID", r.nickname AS "Nickname", p.name AS "Product", r.title AS "Title",
            r.rating AS "Rating", CASE r.status WHEN 1 THEN 'Approved' WHEN 2 THEN 'Pending'
            ELSE 'Not Approved' END AS "Status"
        FROM review r JOIN product p ON p.id = r.product
    """,
    columns=("ID", "Nickname", "Product", "Title", "Rating", "Status"),
    filters=(
        Filter("Nickname", "nickname", "Nickname"),
        Filter("Product", "name", "Product"),
        Filter("Status", "status", "Status", "is", tuple(REVIEW_STATUSES.values())),
    ),
)

_TERMS = Grid(
    title="Search Terms",
    path="/admin/search/term/",
    query="""
        SELECT '' AS row_link, id AS row_id, text AS "Search Query", results AS "Results",
            uses AS "Uses"
        FROM term
    """,
    columns=("Search Query", "Results", "Uses"),
    filters=(Filter("Search Query", "query", "Search Query"),),
    order="row_id",
)

_RULES = Grid(
    title="Cart Price Rules",
    path="/admin/sales_rule/promo_quote/",
    query="""
        SELECT '/admin/sales_rule/promo_quote/edit/id/' || id || '/' AS row_link, id AS row_id,
            name AS "Rule", code AS "Coupon Code",
            CASE kind WHEN 'percent' THEN amount || '%' ELSE '$' || amount END AS "Discount",
            CASE active WHEN 1 THEN 'Active' ELSE 'Inactive' END AS "Status"
        FROM rule
    """,
    columns=("Rule", "Coupon Code", "Discount", "Status"),
    filters=(Filter("Rule", "name", "Rule"), Filter("Coupon Code", "coupon_code", "Coupon Code")),
    new="/admin/sales_rule/promo_quote/new/",
)


@CATALOG_ROUTES.get(*(grid.path for grid in (_PRODUCTS, _CUSTOMERS, _REVIEWS, _TERMS, _RULES)))
@staff
def tables(visit: Visit) -> Response:
    """One of the tables."""
    path = visit.request.path.rstrip("/") + "/"
    grids = (_PRODUCTS, _CUSTOMERS, _REVIEWS, _TERMS, _RULES)
    return grid_page(visit, next(grid for grid in grids if grid.path == path))


@CATALOG_ROUTES.get("/admin/catalog/product/edit/id/{id}/")
@staff
def product_form(visit: Visit) -> Response:
    """The form of a product."""
    product = visit.one("SELECT * FROM product WHERE id = ?", visit.number("id"))
    if product is None:
        return staff_missing(visit)
    return staff_page(visit, "admin_product.html", product=product)


@CATALOG_ROUTES.post("/admin/catalog/product/save/id/{id}/")
@staff
def save_product(visit: Visit) -> Response:
    """Change a product."""
    number = visit.number("id")
    if visit.one("SELECT 1 FROM product WHERE id = ?", number) is None:
        return staff_missing(visit)
    where = f"/admin/catalog/product/edit/id/{number}/"
    name, description = visit.sent("product[name]")[:200], visit.sent("product[description]")
    price = cents(visit.sent("product[price]"))
    stock = "product[quantity_and_stock_status][qty]"
    quantity = whole(visit.sent(stock), 0, _MAX_STOCK)
    if not name or price is None or quantity is None:
        return staff_back(visit, "Please enter a name, a price and a quantity.", where)
    visit.run(
        "UPDATE product SET name = ?, description = ?, price = ?, quantity = ?, enabled = ?"
        " WHERE id = ?",
        name,
        description,
        price,
        quantity,
        visit.sent("product[status]") == "1",
        number,
    )
    return staff_back(visit, "You saved the product.", where)


@CATALOG_ROUTES.get("/admin/customer/index/edit/id/{id}/")
@staff
def customer_form(visit: Visit) -> Response:
    """The form of a customer, and their orders."""
    customer = visit.one("SELECT * FROM customer WHERE id = ?", visit.number("id"))
    if customer is None:
        return staff_missing(visit)
    return staff_page(
        visit,
        "admin_customer.html",
        customer=customer,
        groups=GROUPS,
        addresses=visit.all("SELECT * FROM address WHERE customer = ?", customer["id"]),
        orders=visit.all(
            "SELECT * FROM purchase WHERE customer = ? ORDER BY id DESC", customer["id"]
        ),
    )


@CATALOG_ROUTES.post("/admin/customer/index/save/id/{id}/")
@staff
def save_customer(visit: Visit) -> Response:
    """Change a customer."""
    customer = visit.one("SELECT * FROM customer WHERE id = ?", visit.number("id"))
    if customer is None:
        return staff_missing(visit)
    first, last = visit.sent("customer[firstname]")[:80], visit.sent("customer[lastname]")[:80]
    group = visit.sent("customer[group_id]")
    where = f"/admin/customer/index/edit/id/{customer['id']}/"
    if not first or not last or group not in GROUPS:
        return staff_back(visit, "Please enter a name and choose a group.", where)
    query = "UPDATE customer SET first = ?, last = ?, class = ? WHERE id = ?"
    visit.run(query, first, last, group, customer["id"])
    return staff_back(visit, "You saved the customer.", where)


@CATALOG_ROUTES.get("/admin/review/product/edit/id/{id}/")
@staff
def review_form(visit: Visit) -> Response:
    """The form of a review."""
    review = visit.one(
        "SELECT r.*, p.name FROM review r JOIN product p ON p.id = r.product WHERE r.id = ?",
        visit.number("id"),
    )
    if review is None:
        return staff_missing(visit)
    return staff_page(visit, "admin_review.html", review=review, statuses=REVIEW_STATUSES)


@CATALOG_ROUTES.post("/admin/review/product/save/id/{id}/", "/admin/review/product/delete/id/{id}/")
@staff
def save_review(visit: Visit) -> Response:
    """Approve a review, refuse it, or delete it."""
    number = visit.number("id")
    if visit.one("SELECT 1 FROM review WHERE id = ?", number) is None:
        return staff_missing(visit)
    if "/delete/" in visit.request.path:
        visit.run("DELETE FROM review WHERE id = ?", number)
        return staff_back(visit, "The review has been deleted.", _REVIEWS.path)
    status = whole(visit.sent("status_id"), 1, len(REVIEW_STATUSES))
    where = f"/admin/review/product/edit/id/{number}/"
    if status is None:
        return staff_back(visit, "Please choose a status.", where)
    visit.run("UPDATE review SET status = ? WHERE id = ?", status, number)
    return staff_back(visit, "You saved the review.", where)


@CATALOG_ROUTES.get(
    "/admin/sales_rule/promo_quote/new/", "/admin/sales_rule/promo_quote/edit/id/{id}/"
)
@staff
def rule_form(visit: Visit) -> Response:
    """The form of a price rule."""
    rule = visit.one("SELECT * FROM rule WHERE id = ?", visit.number("id"))
    if rule is None and visit.arguments:
        return staff_missing(visit)
    return staff_page(visit, "admin_rule.html", rule=rule)


@CATALOG_ROUTES.post(
    "/admin/sales_rule/promo_quote/save/", "/admin/sales_rule/promo_quote/save/id/{id}/"
)
@staff
def save_rule(visit: Visit) -> Response:
    """Make a price rule or change it."""
    number = visit.number("id")
    if visit.arguments and visit.one("SELECT 1 FROM rule WHERE id = ?", number) is None:
        return staff_missing(visit)
    name, code = visit.sent("name")[:120], visit.sent("coupon_code")[:60]
    kind = visit.sent("simple_action")
    most = 100 if kind == "percent" else 10_000
    amount = whole(visit.sent("discount_amount"), 1, most)
    taken = visit.one("SELECT 1 FROM rule WHERE code = ? AND id <> ?", code, number)
    if not name or not code or taken or kind not in ("percent", "fixed") or amount is None:
        words = "Please enter a name, a coupon code of its own, and a discount."
        return staff_back(visit, words, _RULES.path)
    values = (name, code, kind, amount, visit.sent("is_active") == "1")
    visit.run("INSERT OR REPLACE INTO rule VALUES (?, ?, ?, ?, ?, ?)", number or None, *values)
    return staff_back(visit, "You saved the rule.", _RULES.path)


SALES_ROUTES = Router()

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


@SALES_ROUTES.get(DASHBOARD)
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


@SALES_ROUTES.get(_GRID.path)
@staff
def orders(visit: Visit) -> Response:
    """All orders."""
    return grid_page(visit, _GRID)


@SALES_ROUTES.get(_VIEW + "{id}/")
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


@SALES_ROUTES.post("/admin/sales/order/{act}/order_id/{id}/")
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


@SALES_ROUTES.get("/admin/reports/report_sales/bestsellers/")
@staff
def bestsellers(visit: Visit) -> Response:
    """The products of a period by how many were sold; canceled orders do not count."""
    begin, end = date(visit.query("from")), date(visit.query("to"))
    rows = [(row["name"], str(row["sold"])) for row in _bestsellers(visit, begin, end, 20)]
    return _report(visit, "Bestsellers Report", begin, end, ("Product", "Order Quantity"), rows)


@SALES_ROUTES.get("/admin/reports/report_sales/sales/")
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
