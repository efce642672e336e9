"""Tasks in the shop that end with an answer, or on a page that was looked for."""

from __future__ import annotations

import calendar
import sqlite3
from collections.abc import Iterator

from agentgym_servers.web.script import Step
from agentgym_servers.web.shop import words
from agentgym_servers.web.shop.data import Dice
from agentgym_servers.web.shop.schema import money, number_of
from agentgym_servers.web.shop.task_form import (
    Instance,
    Templates,
    answers,
    answers_exactly,
    arrives,
    clicks,
    fills,
    presses,
    rows,
    selects,
    stops,
)

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
    for brand in dice.sample(words.BRANDS, len(words.BRANDS)):
        query = "SELECT * FROM product WHERE brand = ? ORDER BY price DESC"
        best = rows(database, query, brand)[0]
        expert = (
            *fills(Search=brand),
            *presses("Search"),
            *selects(Sort_By="Price", Direction="Descending"),
            *presses("Apply"),
            *stops(f"{best['name']}, {money(best['price'])}"),
        )
        told = (best["name"], money(best["price"]).lstrip("$"))
        yield Instance({"brand": brand}, answers(*told), expert)


@QUESTIONS.add(3, "What are the status and the grand total of my order {{number}}?")
def order_status(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """Two facts of an order."""
    for row in dice.sample(rows(database, _EMMAS), 20):
        total = money(row["total"])
        expert = (*opens_order(database, row["id"]), *stops(f"{row['status']}, {total}"))
        told = answers(row["status"], total.lstrip("$"))
        yield Instance({"number": number_of(row["id"])}, told, expert)


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
    for complaint in words.COMPLAINTS:
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
    for row, (said, label, field, direction, short) in dice.sample(choices, 24):
        query = f"product_list_order={field}&product_list_dir={short}"
        expert = (
            *clicks(row["name"]),
            *selects(Sort_By=label, Direction=direction),
            *presses("Apply"),
            *stops(),
        )
        url = f"__SHOPPING__/{row['slug']}.html?{query}"
        yield Instance({"category": row["name"], "order": said}, arrives(url), expert)


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
