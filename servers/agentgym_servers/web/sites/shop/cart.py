"""The shop's cart and its checkout."""

from __future__ import annotations

import sqlite3

import msgspec

from agentgym_servers.web.sites.pages import Router, Visit, redirect, whole
from agentgym_servers.web.sites.shop.browse import sent_product
from agentgym_servers.web.sites.shop.data import MAX_QUANTITY, NOW, SHIPPING
from agentgym_servers.web.sites.shop.shopper import (
    LOG_IN,
    back,
    notice,
    page,
    refused,
    settle,
    shopper_of,
)
from agentgym_servers.web.sites.site import Response

ROUTES = Router()

CART = "/checkout/cart/"

_MAX_LINES = 100


class Sums(msgspec.Struct, frozen=True):
    """What a cart costs, in cents."""

    subtotal: int
    discount: int
    coupon: str


@ROUTES.post("/checkout/cart/add/")
def add(visit: Visit) -> Response:
    """Put a product into the cart."""
    product = sent_product(visit)
    if product is None:
        return refused(visit, "There is no such product.")
    where = f"/{product['slug']}.html"
    quantity = whole(visit.sent("qty", "1"), 1, MAX_QUANTITY)
    if quantity is None:
        return back(visit, "Please enter a quantity greater than 0.", where)
    options = _options(visit, product)
    if options is None:
        return back(visit, "You need to choose options for your item.", where)
    shopper, cookies = settle(visit)
    if put_in(visit, shopper.owner, product, options, quantity):
        words = f"You added {product['name']} to your shopping cart."
    else:
        words = "The requested qty is not available."
    notice(visit, shopper.token, words)
    return redirect(where, cookies)


@ROUTES.get(CART)
def cart(visit: Visit) -> Response:
    """What is in the cart."""
    owner = shopper_of(visit).owner
    lines = _lines(visit, owner)
    return page(visit, "cart.html", lines=lines, sums=_sums(visit, owner, lines))


@ROUTES.post("/checkout/cart/updatePost/")
def update(visit: Visit) -> Response:
    """Change quantities; 0 takes a product out."""
    words = ""
    for line in _lines(visit, shopper_of(visit).owner):
        quantity = whole(visit.sent(f"cart[{line['id']}][qty]"), 0, MAX_QUANTITY)
        if quantity == 0:
            visit.run("DELETE FROM basket_line WHERE id = ?", line["id"])
        elif quantity is not None and quantity <= line["stock"]:
            visit.run("UPDATE basket_line SET quantity = ? WHERE id = ?", quantity, line["id"])
        else:
            words = f"The requested qty of {line['name']} is not available."
    return back(visit, words, CART)


@ROUTES.post("/checkout/cart/delete/")
def remove(visit: Visit) -> Response:
    """Take a product out of the cart."""
    number = whole(visit.sent("id")) or 0
    owner = shopper_of(visit).owner
    visit.run("DELETE FROM basket_line WHERE id = ? AND owner = ?", number, owner)
    return redirect(CART)


@ROUTES.post("/checkout/cart/couponPost/")
def coupon(visit: Visit) -> Response:
    """Apply a coupon, or take it away."""
    shopper, cookies = settle(visit)
    code = "" if visit.sent("remove") == "1" else visit.sent("coupon_code")[:60]
    known = visit.one("SELECT code FROM rule WHERE code = ? AND code <> '' AND active = 1", code)
    if known is None:
        words = (
            f'The coupon code "{code}" is not valid.' if code else "You canceled the coupon code."
        )
    else:
        words = f'You used coupon code "{code}".'
    if known is not None or not code:
        visit.run("INSERT OR REPLACE INTO basket VALUES (?, ?)", shopper.owner, code)
    notice(visit, shopper.token, words)
    return redirect(CART, cookies)


@ROUTES.get("/checkout/")
def checkout(visit: Visit) -> Response:
    """Where to, how, and for how much."""
    shopper = shopper_of(visit)
    if not shopper.customer:
        return redirect(LOG_IN)
    lines = _lines(visit, shopper.owner)
    if not lines:
        return redirect(CART)
    return page(
        visit,
        "checkout.html",
        lines=lines,
        sums=_sums(visit, shopper.owner, lines),
        addresses=visit.all(
            "SELECT * FROM address WHERE customer = ? ORDER BY shipping DESC, id", shopper.customer
        ),
        methods=SHIPPING,
    )


@ROUTES.post("/checkout/placeOrder/")
def place_order(visit: Visit) -> Response:
    """Make an order of what is in the cart."""
    shopper = shopper_of(visit)
    if not shopper.customer:
        return redirect(LOG_IN)
    lines = _lines(visit, shopper.owner)
    address = visit.one(
        "SELECT * FROM address WHERE id = ? AND customer = ?",
        whole(visit.sent("address")) or 0,
        shopper.customer,
    )
    method = SHIPPING.get(visit.sent("shipping_method"))
    if not lines or address is None or method is None:
        return back(visit, "Please choose an address and a shipping method.", "/checkout/")
    wanted: dict[int, int] = {}
    for line in lines:
        wanted[line["product"]] = wanted.get(line["product"], 0) + line["quantity"]
        if wanted[line["product"]] > line["stock"]:
            return back(visit, f"The requested qty of {line['name']} is not available.", CART)
    _keep(visit, shopper.customer, lines, address, method, _sums(visit, shopper.owner, lines))
    visit.run("DELETE FROM basket_line WHERE owner = ?", shopper.owner)
    visit.run("DELETE FROM basket WHERE owner = ?", shopper.owner)
    return redirect("/checkout/onepage/success/")


@ROUTES.get("/checkout/onepage/success/")
def success(visit: Visit) -> Response:
    """The number of the order that was just placed."""
    customer = shopper_of(visit).customer
    row = visit.one("SELECT max(id) AS id FROM purchase WHERE customer = ?", customer)
    if row is None or row["id"] is None:
        return redirect(CART)
    return page(visit, "success.html", order=row["id"])


def put_in(visit: Visit, owner: str, product: sqlite3.Row, options: str, quantity: int) -> bool:
    """Put a product into a cart as far as it is in stock; False if it is not."""
    line = visit.one(
        "SELECT * FROM basket_line WHERE owner = ? AND product = ? AND options = ?",
        owner,
        product["id"],
        options,
    )
    together = quantity + (line["quantity"] if line is not None else 0)
    count = visit.one("SELECT count(*) AS count FROM basket_line WHERE owner = ?", owner)
    full = line is None and count is not None and count["count"] >= _MAX_LINES
    if together > min(product["quantity"], MAX_QUANTITY) or not product["enabled"] or full:
        return False
    if line is not None:
        visit.run("UPDATE basket_line SET quantity = ? WHERE id = ?", together, line["id"])
    else:
        values = (owner, product["id"], options, quantity)
        visit.run("INSERT INTO basket_line VALUES (NULL, ?, ?, ?, ?)", *values)
    return True


def _options(visit: Visit, product: sqlite3.Row) -> str | None:
    chosen = []
    for label, column in (("Color", "colours"), ("Size", "sizes")):
        if product[column]:
            option = visit.sent(label.lower())
            if option not in product[column].split(","):
                return None
            chosen.append(f"{label}: {option}")
    return ", ".join(chosen)


def _lines(visit: Visit, owner: str) -> list[sqlite3.Row]:
    return visit.all(
        "SELECT b.*, p.name, p.slug, p.sku, p.price, p.quantity * p.enabled AS stock"
        " FROM basket_line b JOIN product p ON p.id = b.product WHERE b.owner = ? ORDER BY b.id",
        owner,
    )


def _sums(visit: Visit, owner: str, lines: list[sqlite3.Row]) -> Sums:
    subtotal = sum(line["price"] * line["quantity"] for line in lines)
    rule = visit.one(
        "SELECT r.* FROM basket b JOIN rule r ON r.code = b.coupon AND r.active = 1"
        " WHERE b.owner = ? AND b.coupon <> '' ORDER BY r.id",
        owner,
    )
    if rule is None:
        return Sums(subtotal, 0, "")
    percent = rule["kind"] == "percent"
    discount = subtotal * rule["amount"] // 100 if percent else 100 * rule["amount"]
    return Sums(subtotal, min(subtotal, discount), rule["code"])


def _keep(
    visit: Visit,
    customer: int,
    lines: list[sqlite3.Row],
    address: sqlite3.Row,
    method: tuple[str, int],
    sums: Sums,
) -> None:
    label, shipping = method
    where = [address[c] for c in ("name", "street", "city", "region", "postcode", "phone")]
    order = visit.run(
        f"INSERT INTO purchase VALUES (NULL, ?, ?, 'Pending', {', '.join('?' * 12)})",
        customer,
        NOW,
        *where,
        label,
        sums.coupon,
        sums.subtotal,
        sums.discount,
        shipping,
        sums.subtotal - sums.discount + shipping,
    )
    for line in lines:
        sold = (line["product"], line["options"], line["price"], line["quantity"])
        visit.run("INSERT INTO line VALUES (NULL, ?, ?, ?, ?, ?)", order, *sold)
        visit.run(
            "UPDATE product SET quantity = quantity - ? WHERE id = ?",
            line["quantity"],
            line["product"],
        )
