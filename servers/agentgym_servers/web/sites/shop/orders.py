"""A customer's orders and reviews."""

from __future__ import annotations

import sqlite3

from agentgym_servers.web.sites.pages import Router, Visit, whole
from agentgym_servers.web.sites.shop.account import members
from agentgym_servers.web.sites.shop.browse import page_links
from agentgym_servers.web.sites.shop.cart import CART, put_in
from agentgym_servers.web.sites.shop.data import NOW
from agentgym_servers.web.sites.shop.shopper import back, missing, page, shopper_of
from agentgym_servers.web.sites.site import Response

ROUTES = Router()

_PER_PAGE = 10

_HISTORY = "/sales/order/history/"


@ROUTES.get(_HISTORY)
@members
def history(visit: Visit) -> Response:
    """All orders, the newest first."""
    customer = shopper_of(visit).customer
    orders = visit.all("SELECT * FROM purchase WHERE customer = ? ORDER BY id DESC", customer)
    pages = max(1, -(-len(orders) // _PER_PAGE))
    current = whole(visit.query("p"), 1, pages) or 1
    return page(
        visit,
        "orders.html",
        orders=orders[_PER_PAGE * (current - 1) : _PER_PAGE * current],
        pages=page_links(_HISTORY, {}, current, pages),
    )


@ROUTES.get("/sales/order/view/order_id/{id}/")
@members
def view(visit: Visit) -> Response:
    """One order."""
    order = _own_order(visit)
    if order is None:
        return missing(visit)
    notes = visit.all("SELECT * FROM note WHERE purchase = ? ORDER BY id DESC", order["id"])
    return page(visit, "order.html", order=order, lines=lines_of(visit, order["id"]), notes=notes)


@ROUTES.post("/sales/order/reorder/order_id/{id}/")
@members
def reorder(visit: Visit) -> Response:
    """Put an order's products into the cart again."""
    order = _own_order(visit)
    if order is None:
        return missing(visit)
    words = ""
    for line in lines_of(visit, order["id"]):
        product = visit.one("SELECT * FROM product WHERE id = ?", line["product"])
        owner = shopper_of(visit).owner
        if product and not put_in(visit, owner, product, line["options"], line["quantity"]):
            words = f"The requested qty of {line['name']} is not available."
    return back(visit, words, CART)


@ROUTES.post("/sales/order/cancel/order_id/{id}/")
@members
def cancel(visit: Visit) -> Response:
    """Cancel an order whose packing has not begun."""
    order = _own_order(visit)
    if order is None:
        return missing(visit)
    where = f"/sales/order/view/order_id/{order['id']}/"
    if order["status"] != "Pending":
        return back(visit, "This order can not be canceled any more.", where)
    cancel_order(visit, order["id"])
    return back(visit, "The order has been canceled.", where)


@ROUTES.post("/review/product/post/id/{id}/")
def write_review(visit: Visit) -> Response:
    """Send a review, which waits for moderation."""
    product = visit.one("SELECT * FROM product WHERE id = ? AND enabled = 1", visit.number("id"))
    if product is None:
        return missing(visit)
    where = f"/{product['slug']}.html"
    rating = whole(visit.sent("rating"), 1, 5)
    nickname, title = visit.sent("nickname")[:80], visit.sent("title")[:200]
    detail = visit.sent("detail")
    if rating is None or not (nickname and title and detail):
        return back(visit, "Please give a rating, a nickname, a summary and a review.", where)
    values = (product["id"], nickname, title, detail, rating, NOW)
    visit.run("INSERT INTO review VALUES (NULL, ?, ?, ?, ?, ?, 2, ?)", *values)
    return back(visit, "You submitted your review for moderation.", where)


@ROUTES.get("/review/customer/")
@members
def my_reviews(visit: Visit) -> Response:
    """What the customer wrote under their own name."""
    reviews = visit.all(
        "SELECT r.*, p.name, p.slug FROM review r JOIN product p ON p.id = r.product"
        " JOIN customer c ON r.nickname IN (c.first, c.first || ' ' || c.last)"
        " WHERE c.id = ? AND p.enabled = 1 ORDER BY r.id",
        shopper_of(visit).customer,
    )
    return page(visit, "reviews.html", reviews=reviews)


def lines_of(visit: Visit, order: int) -> list[sqlite3.Row]:
    """What an order is made of."""
    return visit.all(
        "SELECT l.*, p.name, p.sku, p.slug FROM line l JOIN product p ON p.id = l.product"
        " WHERE l.purchase = ? ORDER BY l.id",
        order,
    )


def cancel_order(visit: Visit, order: int) -> None:
    """Cancel an order and return its items to the stock."""
    visit.run("UPDATE purchase SET status = 'Canceled' WHERE id = ?", order)
    for line in lines_of(visit, order):
        visit.run(
            "UPDATE product SET quantity = quantity + ? WHERE id = ?",
            line["quantity"],
            line["product"],
        )
    words = (order, NOW, "Canceled", "Order canceled.")
    visit.run("INSERT INTO note VALUES (NULL, ?, ?, ?, ?)", *words)


def _own_order(visit: Visit) -> sqlite3.Row | None:
    query = "SELECT * FROM purchase WHERE id = ? AND customer = ?"
    return visit.one(query, visit.number("id"), shopper_of(visit).customer)
