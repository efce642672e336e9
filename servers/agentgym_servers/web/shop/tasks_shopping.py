"""Tasks in the shop that change something: cart, orders, wish list, addresses and reviews."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from agentgym_servers.web.shop import words
from agentgym_servers.web.shop.data import Dice
from agentgym_servers.web.shop.schema import SHIPPING, money, number_of
from agentgym_servers.web.shop.task_form import (
    Instance,
    Templates,
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
    value_of,
)
from agentgym_servers.web.shop.tasks_questions import finds, opens_order

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
def cancel(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
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
        place = dice.pick([place for place in words.PLACES if place[0] != old["city"]])
        city, region, postcode = place
        street = f"{1000 + dice.below(8000)} {dice.pick(words.STREETS)}"
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
        stars, nickname = 2 + dice.below(4), f"{dice.pick(words.LINES)}{10 + dice.below(90)}"
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
