"""The shop's public pages: home, categories, search and products."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from agentgym_servers.web.sites.pages import Router, Visit, link, redirect, whole
from agentgym_servers.web.sites.shop.shopper import (
    back,
    cents,
    missing,
    notice,
    page,
    refused,
    settle,
    shopper_of,
)
from agentgym_servers.web.sites.site import Response

PageLink = tuple[int, str]

ROUTES = Router()

_PER_PAGE = 12

_ORDERS = {"position": "id", "name": "name", "price": "price"}

_SWATCH = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="160" height="120">'
    '<rect width="160" height="120" fill="hsl({hue},40%,70%)"/></svg>'
)


@ROUTES.get("/")
def home(visit: Visit) -> Response:
    """What sells best."""
    products = visit.all(
        "SELECT p.*, sum(l.quantity) AS sold FROM product p JOIN line l ON l.product = p.id"
        " WHERE p.enabled = 1 GROUP BY p.id ORDER BY sold DESC, p.id LIMIT 8"
    )
    return page(visit, "home.html", products=products)


@ROUTES.get("/{page}.html")
def shelf_or_product(visit: Visit) -> Response:
    """A category's products, or one product."""
    slug = visit.argument("page")
    category = visit.one("SELECT * FROM category WHERE slug = ?", slug)
    if category is not None:
        found = "category = ? AND enabled = 1"
        return _listing(visit, str(category["name"]), found, [category["id"]], f"/{slug}.html", {})
    product = visit.one("SELECT * FROM product WHERE slug = ? AND enabled = 1", slug)
    return missing(visit) if product is None else _product(visit, product)


@ROUTES.get("/catalogsearch/result/")
def search(visit: Visit) -> Response:
    """The products whose name or SKU has every word."""
    words = visit.query("q")[:128]
    marks = ["enabled = 1"]
    values: list[object] = []
    for word in words.split()[:8]:
        plain = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        marks.append("(name LIKE ? ESCAPE '\\' OR sku = ?)")
        values += [f"%{plain}%", word]
    if not words:
        marks.append("0")
    elif visit.query("p", "1") == "1":
        visit.run(
            "INSERT INTO term SELECT NULL, ?, count(*), 1 FROM product WHERE "
            + " AND ".join(marks)
            + " ON CONFLICT (text) DO UPDATE SET uses = uses + 1",
            words.lower(),
            *values,
        )
    title = f"Search results for: '{words}'"
    found = " AND ".join(marks)
    return _listing(visit, title, found, values, "/catalogsearch/result/", {"q": words})


@ROUTES.get("/media/{id}.svg")
def picture(visit: Visit) -> Response:
    """A product's picture."""
    hue = visit.number("id") * 47 % 360
    return Response(_SWATCH.format(hue=hue), content_type="image/svg+xml")


@ROUTES.post("/catalog/product_compare/add/")
def compare(visit: Visit) -> Response:
    """Put a product beside the others to compare."""
    product = sent_product(visit)
    if product is None:
        return refused(visit, "There is no such product.")
    shopper, cookies = settle(visit)
    owner = shopper.owner
    visit.run("DELETE FROM comparison WHERE owner = ? AND product = ?", owner, product["id"])
    visit.run("INSERT INTO comparison VALUES (NULL, ?, ?)", owner, product["id"])
    words = f"You added product {product['name']} to the comparison list."
    notice(visit, shopper.token, words)
    return redirect(f"/{product['slug']}.html", cookies)


@ROUTES.get("/catalog/product_compare/index/")
def comparison(visit: Visit) -> Response:
    """The products side by side."""
    products = visit.all(
        "SELECT p.* FROM comparison c JOIN product p ON p.id = c.product"
        " WHERE c.owner = ? AND p.enabled = 1 ORDER BY c.id LIMIT 50",
        shopper_of(visit).owner,
    )
    return page(visit, "compare.html", products=products)


@ROUTES.post("/catalog/product_compare/clear/")
def clear_comparison(visit: Visit) -> Response:
    """Compare nothing."""
    visit.run("DELETE FROM comparison WHERE owner = ?", shopper_of(visit).owner)
    return back(visit, "You cleared the comparison list.", "/catalog/product_compare/index/")


def sent_product(visit: Visit) -> sqlite3.Row | None:
    """The product that a form names, if the shop sells it."""
    number = whole(visit.sent("product")) or 0
    return visit.one("SELECT * FROM product WHERE id = ? AND enabled = 1", number)


def page_links(path: str, query: Mapping[str, object], current: int, pages: int) -> list[PageLink]:
    """Number and address of each page of a list; the current one has no address."""
    return [
        (number, "" if number == current else link(path, {**query, "p": number}))
        for number in range(1, pages + 1)
    ]


def _product(visit: Visit, product: sqlite3.Row) -> Response:
    reviews = visit.all(
        "SELECT * FROM review WHERE product = ? AND status = 1 ORDER BY made DESC", product["id"]
    )
    ratings = [row["rating"] for row in reviews]
    return page(
        visit,
        "product.html",
        product=product,
        category=visit.one("SELECT * FROM category WHERE id = ?", product["category"]),
        reviews=reviews,
        percent=round(20 * sum(ratings) / len(ratings)) if ratings else 0,
    )


def _listing(
    visit: Visit, title: str, found: str, values: list[object], path: str, query: dict[str, str]
) -> Response:
    order = visit.query("product_list_order", "position")
    direction = visit.query("product_list_dir", "asc")
    order = order if order in _ORDERS else "position"
    direction = direction if direction in ("asc", "desc") else "asc"
    chosen = dict(query)
    for name, default, value in (
        ("product_list_order", "position", order),
        ("product_list_dir", "asc", direction),
    ):
        chosen[name] = "" if value == default else value
    for field, sign in (("price_from", ">="), ("price_to", "<=")):
        limit = cents(visit.query(field))
        chosen[field] = "" if limit is None else visit.query(field)
        if limit is not None:
            found, values = f"{found} AND price {sign} ?", [*values, limit]
    counted = visit.one(f"SELECT count(*) AS count FROM product WHERE {found}", *values)
    count = int(counted["count"]) if counted else 0
    pages = max(1, -(-count // _PER_PAGE))
    current = whole(visit.query("p"), 1, pages) or 1
    products = visit.all(
        f"SELECT * FROM product WHERE {found} ORDER BY {_ORDERS[order]} {direction}, id"
        f" LIMIT {_PER_PAGE} OFFSET {_PER_PAGE * (current - 1)}",
        *values,
    )
    return page(
        visit,
        "list.html",
        title=title,
        path=path,
        query=query,
        chosen=chosen,
        order=order,
        direction=direction,
        products=products,
        count=count,
        pages=page_links(path, chosen, current, pages),
    )
