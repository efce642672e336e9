"""The tasks of the shop's customers, and all tasks of the shop with those of its admin."""

from __future__ import annotations

import calendar
import sqlite3
from collections.abc import Iterator

from agentgym_servers.web.sites.shop import data
from agentgym_servers.web.sites.shop.admin_tasks import ADMIN
from agentgym_servers.web.sites.shop.data import SHIPPING, Dice, build, money, number_of
from agentgym_servers.web.sites.shop.task_form import (
    Instance,
    Templates,
    answers,
    answers_exactly,
    arrives,
    clicks,
    equals,
    fills,
    leaves,
    outer_text,
    presses,
    rows,
    selects,
    shows,
    stops,
    tasks_of,
    value_of,
)
from agentgym_servers.web.tasks.scripts import ScriptedTask, Step

QUESTIONS = Templates("shopping", 7100)

_EMMAS = "SELECT * FROM purchase WHERE customer = 1 ORDER BY id DESC"

_ORDERS_PER_PAGE = 10

_WAYS = (
    ("ascending price", "Price", "price", "Ascending", "asc"),
    ("descending price", "Price", "price", "Descending", "desc"),
    ("descending name", "Product Name", "name", "Descending", "desc"),
)


def finds(product: str) -> tuple[Step, ...]:
    """Search for a product and open its page."""
    return (*fills(Search=product), *presses("Search"), *clicks(product))


def opens_order(database: sqlite3.Connection, order: int) -> tuple[Step, ...]:
    """Open one of the customer's orders from the list of them."""
    position = [row["id"] for row in rows(database, _EMMAS)].index(order)
    further = clicks(str(position // _ORDERS_PER_PAGE + 1)) if position >= _ORDERS_PER_PAGE else ()
    return (*clicks("My Account", "My Orders"), *further, *clicks(number_of(order)))


@QUESTIONS.add(1, "How much does the {{product}} cost?")
def price(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A price on a product's page."""
    for row in dice.sample(rows(database, "SELECT * FROM product ORDER BY id"), 24):
        answer = money(row["price"])
        expert = (*finds(row["name"]), *stops(answer))
        yield Instance({"product": row["name"]}, answers(answer.lstrip("$")), expert)


@QUESTIONS.add(
    2, "What is the most expensive product of {{brand}}, and what does it cost?", split="test"
)
def most_expensive(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """The top of a search result that has been sorted; no two prices are equal."""
    for brand in dice.sample(data.BRANDS, len(data.BRANDS)):
        query = "SELECT * FROM product WHERE brand = ? ORDER BY price DESC"
        best = rows(database, query, brand)[0]
        expert = (
            *fills(Search=brand),
            *presses("Search"),
            *selects(Sort_By="Price", Direction="Descending"),
            *presses("Apply"),
            *stops(f"{best['name']}, {money(best['price'])}"),
        )
        expected = (best["name"], money(best["price"]).lstrip("$"))
        yield Instance({"brand": brand}, answers(*expected), expert)


@QUESTIONS.add(3, "What are the status and the grand total of my order {{number}}?")
def order_status(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """Two facts of an order."""
    for row in dice.sample(rows(database, _EMMAS), 20):
        total = money(row["total"])
        expert = (*opens_order(database, row["id"]), *stops(f"{row['status']}, {total}"))
        expected = answers(row["status"], total.lstrip("$"))
        yield Instance({"number": number_of(row["id"])}, expected, expert)


@QUESTIONS.add(
    4, "What is the sum of the grand totals of my complete orders of {{month}} {{year}}?"
)
def spent(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A sum over the list of orders."""
    query = (
        "SELECT substr(placed, 1, 7) AS month, sum(total) AS total FROM purchase"
        " WHERE customer = 1 AND status = 'Complete' GROUP BY month ORDER BY month"
    )
    for row in dice.sample(rows(database, query), 16):
        year, month = row["month"].split("-")
        answer = money(row["total"])
        expert = (*clicks("My Account", "My Orders"), *stops(answer))
        slots = {"month": calendar.month_name[int(month)], "year": int(year)}
        yield Instance(slots, answers(answer.lstrip("$")), expert)


@QUESTIONS.add(5, "List the reviewers of the {{product}} who mention that {{description}}")
def reviewers(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """Names among reviews."""
    query = (
        "SELECT p.name, group_concat(r.nickname, ', ') AS who, count(*) AS count FROM review r"
        " JOIN product p ON p.id = r.product WHERE r.status = 1 AND lower(r.detail) LIKE ?"
        " GROUP BY p.id HAVING count BETWEEN 1 AND 4 ORDER BY p.id"
    )
    for complaint in data.COMPLAINTS:
        for row in dice.sample(rows(database, query, f"%{complaint}%"), 4):
            names = row["who"].split(", ")
            slots = {"product": row["name"], "description": complaint}
            yield Instance(slots, answers(*names), (*finds(row["name"]), *stops(row["who"])))


@QUESTIONS.add(6, "How many reviews does the {{product}} have? Answer with a number.", split="test")
def review_count(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A count on a product's page."""
    query = (
        "SELECT p.name, count(*) AS count FROM review r JOIN product p ON p.id = r.product"
        " WHERE r.status = 1 GROUP BY p.id ORDER BY p.id"
    )
    for row in dice.sample(rows(database, query), 16):
        count = str(row["count"])
        expert = (*finds(row["name"]), *stops(count))
        yield Instance({"product": row["name"]}, answers_exactly(count), expert)


@QUESTIONS.add(7, "Show me the {{category}} that cost at most ${{price}}")
def price_filter(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A category with a price filter."""
    for row in rows(database, "SELECT * FROM category ORDER BY id"):
        prices = rows(database, "SELECT price FROM product WHERE category = ?", row["id"])
        middle = sorted(price["price"] for price in prices)[3:-3]
        for limit in sorted({cents // 100 for cents in dice.sample(middle, 2)}):
            url = f"__SHOPPING__/{row['slug']}.html?price_to="
            expert = (
                *clicks(row["name"]),
                *fills(Price_To=str(limit)),
                *presses("Apply"),
                *stops(),
            )
            slots = {"category": row["name"], "price": limit}
            yield Instance(slots, arrives(f"{url}{limit} |OR| {url}{limit}.00"), expert)


@QUESTIONS.add(8, "List the products in {{category}} by {{order}}")
def sorted_category(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A category in another order."""
    categories = rows(database, "SELECT * FROM category ORDER BY id")
    choices = [(row, way) for row in categories for way in _WAYS]
    for row, (order, label, field, direction, short) in dice.sample(choices, 24):
        query = f"product_list_order={field}&product_list_dir={short}"
        expert = (
            *clicks(row["name"]),
            *selects(Sort_By=label, Direction=direction),
            *presses("Apply"),
            *stops(),
        )
        url = f"__SHOPPING__/{row['slug']}.html?{query}"
        yield Instance({"category": row["name"], "order": order}, arrives(url), expert)


@QUESTIONS.add(
    9, "Open the page of the {{extreme}} product in the category {{category}}", split="test"
)
def extreme_product(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """The first product of a category that has been sorted."""
    ways = (("cheapest", "Ascending", "ASC"), ("most expensive", "Descending", "DESC"))
    for row in rows(database, "SELECT * FROM category ORDER BY id"):
        for extreme, direction, short in ways:
            query = f"SELECT * FROM product WHERE category = ? ORDER BY price {short}"
            product = rows(database, query, row["id"])[0]
            expert = (
                *clicks(row["name"]),
                *selects(Sort_By="Price", Direction=direction),
                *presses("Apply"),
                *clicks(product["name"]),
                *stops(),
            )
            slots = {"extreme": extreme, "category": row["name"]}
            yield Instance(slots, arrives(f"__SHOPPING__/{product['slug']}.html"), expert)


SHOPPING = Templates("shopping", 7200)

_LATEST = "func:shopping_get_latest_order_url()"

_ORDERED = outer_text(".order-details-items.ordered")


@SHOPPING.add(1, "Add the {{product}} to my wish list")
def wish(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """One product on the wish list."""
    for row in dice.sample(rows(database, "SELECT * FROM product ORDER BY id"), 20):
        check = shows("__SHOPPING__/wishlist/", outer_text(".products-grid.wishlist"), row["name"])
        expert = (*finds(row["name"]), *presses("Add to Wish List"), *stops())
        yield Instance({"product": row["name"]}, leaves(check), expert)


@SHOPPING.add(2, "Add {{quantity}} pieces of the {{product}} in {{color}} to my cart")
def add_to_cart(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A number of pieces of one variant; the line's sum shows how many there are."""
    query = "SELECT * FROM product WHERE colours <> '' AND sizes = '' AND quantity >= 5 ORDER BY id"
    for row in dice.sample(rows(database, query), 20):
        quantity, color = 2 + dice.below(4), dice.pick(row["colours"].split(","))
        check = shows(
            "__SHOPPING__/checkout/cart",
            outer_text(".cart.items"),
            row["name"],
            f"Color: {color}",
            money(quantity * row["price"]),
        )
        expert = (
            *finds(row["name"]),
            *selects(Color=color),
            *fills(Qty=str(quantity)),
            *presses("Add to Cart"),
            *stops(),
        )
        slots = {"quantity": quantity, "product": row["name"], "color": color}
        yield Instance(slots, leaves(check), expert)


@SHOPPING.add(3, "Buy one piece of the {{product}} and have it shipped by {{method}}")
def buy(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """An order with one product and a shipping method."""
    query = "SELECT * FROM product WHERE colours = '' AND quantity > 0 ORDER BY id"
    for row in dice.sample(rows(database, query), 16):
        method, shipping = dice.pick(tuple(SHIPPING.values()))
        total = money(row["price"] + shipping)
        expert = (
            *finds(row["name"]),
            *presses("Add to Cart"),
            *clicks("My Cart", "Proceed to Checkout"),
            *selects(Shipping_Method=f"{method} {money(shipping)}"),
            *presses("Place Order"),
            *stops(),
        )
        check = shows(_LATEST, _ORDERED, row["sku"], money(shipping), total)
        yield Instance({"product": row["name"], "method": method}, leaves(check), expert)


@SHOPPING.add(4, "Order again everything that was in my order {{number}}", split="test")
def reorder(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """An order like an old one."""
    query = (
        "SELECT o.id, o.subtotal, group_concat(p.sku) AS skus FROM purchase o"
        " JOIN line l ON l.purchase = o.id JOIN product p ON p.id = l.product"
        " WHERE o.customer = 1 GROUP BY o.id HAVING min(p.quantity - l.quantity) >= 0"
        " AND o.id < (SELECT max(id) FROM purchase) ORDER BY o.id"
    )
    for row in dice.sample(rows(database, query), 14):
        expert = (
            *opens_order(database, row["id"]),
            *presses("Reorder"),
            *clicks("Proceed to Checkout"),
            *presses("Place Order"),
            *stops(),
        )
        contents = (*row["skus"].split(","), money(row["subtotal"]))
        check = shows(_LATEST, _ORDERED, *contents)
        # Else the old order would do: nothing is like a new one but a new one.
        latest = number_of(rows(database, "SELECT max(id) + 1 AS id FROM purchase")[0]["id"])
        fresh = shows(_LATEST, outer_text("h1"), latest)
        yield Instance({"number": number_of(row["id"])}, leaves(check, fresh), expert)


@SHOPPING.add(5, "Cancel my order {{number}}")
def cancel_order(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """An order that is still pending."""
    query = "SELECT * FROM purchase WHERE customer = 1 AND status = 'Pending' ORDER BY id"
    for row in dice.sample(rows(database, query), 12):
        url = f"__SHOPPING__/sales/order/view/order_id/{row['id']}/"
        expert = (*opens_order(database, row["id"]), *presses("Cancel Order"), *stops())
        check = equals(url, outer_text(".order-status"), "Canceled")
        yield Instance({"number": number_of(row["id"])}, leaves(check), expert)


@SHOPPING.add(
    6,
    "I moved. My address is {{street}}, {{city}}, {{region}}, {{postcode}} now;"
    " update my default billing and shipping address",
    split="test",
)
def move(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A new default address."""
    old = rows(database, "SELECT * FROM address WHERE customer = 1")[0]
    for _ in range(12):
        place = dice.pick([place for place in data.PLACES if place[0] != old["city"]])
        city, region, postcode = place
        street = f"{1000 + dice.below(8000)} {dice.pick(data.STREETS)}"
        checks = [
            shows(
                "__SHOPPING__/customer/address",
                outer_text(f".box.box-address-{use} > .box-content"),
                street,
                f"{city}, {region}, {postcode}",
            )
            for use in ("billing", "shipping")
        ]
        expert = (
            *clicks("My Account", "Address Book", "Change Billing Address"),
            *fills(Street_Address=street, City=city),
            *fills(**{"State/Province": region, "Zip/Postal Code": postcode}),
            *presses("Save Address"),
            *stops(),
        )
        slots = {"street": street, "city": city, "region": region, "postcode": postcode}
        yield Instance(slots, leaves(*checks), expert)


@SHOPPING.add(7, "Rate the {{product}} with {{stars}} stars, under the nickname {{nickname}}")
def review(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A new review; its words are free."""
    for row in dice.sample(rows(database, "SELECT * FROM product ORDER BY id"), 16):
        stars, nickname = 2 + dice.below(4), f"{dice.pick(data.LINES)}{10 + dice.below(90)}"
        sku = row["sku"]
        checks = (
            shows("last", f"func:shopping_get_sku_latest_review_rating('{sku}')", str(20 * stars)),
            equals("last", f"func:shopping_get_sku_latest_review_author('{sku}')", nickname),
        )
        expert = (
            *finds(row["name"]),
            *selects(Rating=f"{stars} stars"),
            *fills(Nickname=nickname, Summary="As described", Review="I use it every day."),
            *presses("Submit Review"),
            *stops(),
        )
        slots = {"product": row["name"], "stars": stars, "nickname": nickname}
        yield Instance(slots, leaves(*checks), expert)


@SHOPPING.add(
    8,
    "Fill in the contact form to ask for a refund of the {{product}} of my order {{number}}."
    " Write the word refund, the order number and the SKU. Do not submit it, I will check first.",
    split="test",
)
def refund_draft(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A form that is filled in but not sent."""
    query = (
        "SELECT o.id, p.name, p.sku, p.slug FROM purchase o JOIN line l ON l.purchase = o.id"
        " JOIN product p ON p.id = l.product WHERE o.customer = 1 AND o.status = 'Complete'"
        " ORDER BY l.id"
    )
    for row in dice.sample(rows(database, query), 14):
        number = number_of(row["id"])
        text = f"Hello, I ask for a refund of {row['sku']} from order {number}."
        check = shows("last", value_of("comment"), "refund", number, row["sku"])
        expert = (
            *opens_order(database, row["id"]),
            *clicks("Contact Us"),
            *fills(**{"What\u2019s on your mind?": text}),
            *stops(),
        )
        slots = {"product": row["name"], "number": number}
        yield Instance(slots, arrives("__SHOPPING__/contact", check), expert)


TEMPLATES = (*QUESTIONS.listed, *SHOPPING.listed, *ADMIN.listed)


def shop_tasks(seed: int = 0) -> list[ScriptedTask]:
    """The tasks over the shop that `Shop.make_database(seed)` makes, always in the same order."""
    database = build(seed)
    made = [task for template in TEMPLATES for task in tasks_of(template, database, seed)]
    database.close()
    return made
