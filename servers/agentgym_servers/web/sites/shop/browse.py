"""The shop's public pages: home, categories, search, products, and the cart."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec

from agentgym_servers.web.sites.pages import Router, Visit, link, redirect, whole
from agentgym_servers.web.sites.shop.data import MAX_QUANTITY, NOW, SHIPPING
from agentgym_servers.web.sites.shop.shopper import (
    LOG_IN,
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


CART_ROUTES = Router()

CART = "/checkout/cart/"

_MAX_LINES = 100


class Sums(msgspec.Struct, frozen=True):
    """What a cart costs, in cents."""

    subtotal: int
    discount: int
    coupon: str


@CART_ROUTES.post("/checkout/cart/add/")
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


@CART_ROUTES.get(CART)
def cart(visit: Visit) -> Response:
    """What is in the cart."""
    owner = shopper_of(visit).owner
    lines = _lines(visit, owner)
    return page(visit, "cart.html", lines=lines, sums=_sums(visit, owner, lines))


@CART_ROUTES.post("/checkout/cart/updatePost/")
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


@CART_ROUTES.post("/checkout/cart/delete/")
def remove(visit: Visit) -> Response:
    """Take a product out of the cart."""
    number = whole(visit.sent("id")) or 0
    owner = shopper_of(visit).owner
    visit.run("DELETE FROM basket_line WHERE id = ? AND owner = ?", number, owner)
    return redirect(CART)


@CART_ROUTES.post("/checkout/cart/couponPost/")
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


@CART_ROUTES.get("/checkout/")
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


@CART_ROUTES.post("/checkout/placeOrder/")
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


@CART_ROUTES.get("/checkout/onepage/success/")
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
