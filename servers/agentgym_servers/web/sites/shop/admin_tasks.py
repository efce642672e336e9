"""The tasks of the shop's admin."""

from __future__ import annotations

import calendar
import sqlite3
from collections.abc import Iterator

from agentgym_servers.web.sites.shop import data
from agentgym_servers.web.sites.shop.data import STATUSES, Dice, money, number_of
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
    one_of_each,
    outer_text,
    presses,
    rows,
    selects,
    shows,
    stops,
    value_of,
)
from agentgym_servers.web.tasks.scripts import Step

ADMIN = Templates("shopping_admin", 7300)

_ORDER = "__SHOPPING_ADMIN__/sales/order/view/order_id/{}/"

_MESSAGES = (
    "Your parcel leaves us tomorrow.",
    "The delivery is two days late, we are sorry.",
    "Please call us about your address.",
    "A gift card has been added to your parcel.",
)


def _order(order: int) -> tuple[Step, ...]:
    number = number_of(order)
    return (*clicks("Orders"), *fills(ID=number), *presses("Apply Filters"), *clicks(number))


def _product(name: str) -> tuple[Step, ...]:
    return (*clicks("Products"), *fills(Name=name), *presses("Apply Filters"), *clicks(name))


@ADMIN.add(
    1,
    "What is the best-selling product in {{period}}, not counting canceled orders?"
    " Answer with its name.",
)
def bestseller(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """The top of a report, where nothing else sold as often."""
    query = (
        "SELECT p.name, sum(l.quantity) AS sold FROM line l JOIN purchase o ON o.id = l.purchase"
        " JOIN product p ON p.id = l.product WHERE o.status <> 'Canceled'"
        " AND o.placed >= ? AND o.placed <= ? GROUP BY p.id ORDER BY sold DESC, p.id"
    )
    for year in (2022, 2023):
        quarters = [(f"the quarter Q{q + 1} of {year}", 3 * q + 1, 3 * q + 3) for q in range(4)]
        months = [(f"{calendar.month_name[m]} {year}", m, m) for m in range(1, 13)]
        for period, begin, end in [(f"the year {year}", 1, 12), *quarters, *months]:
            last = calendar.monthrange(year, end)[1]
            dates = f"{year}-{begin:02d}-01", f"{year}-{end:02d}-{last}"
            best, second = rows(database, query, dates[0], f"{dates[1]} 24")[:2]
            if best["sold"] == second["sold"]:
                continue
            expert = (
                *clicks("Bestsellers Report"),
                *fills(From=dates[0], To=dates[1]),
                *presses("Show Report"),
                *stops(best["name"]),
            )
            yield Instance({"period": period}, answers_exactly(best["name"]), expert)


@ADMIN.add(
    2,
    "How many orders has the customer {{name}} placed, whatever became of them?"
    " Answer with a number.",
    split="test",
)
def order_count(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A count on a customer's page."""
    query = (
        "SELECT c.first || ' ' || c.last AS name, count(*) AS count FROM purchase o"
        " JOIN customer c ON c.id = o.customer GROUP BY c.id ORDER BY c.id"
    )
    for row in dice.sample(rows(database, query), 16):
        count = str(row["count"])
        expert = (
            *clicks("Customers"),
            *fills(Name=row["name"]),
            *presses("Apply Filters"),
            *clicks(row["name"]),
            *stops(count),
        )
        yield Instance({"name": row["name"]}, answers_exactly(count), expert)


@ADMIN.add(3, "What is the email address of the customer who placed order {{number}}?")
def email(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A fact of an order."""
    query = (
        "SELECT o.id, c.email FROM purchase o JOIN customer c ON c.id = o.customer ORDER BY o.id"
    )
    for row in dice.sample(rows(database, query), 20):
        expert = (*_order(row["id"]), *stops(row["email"]))
        yield Instance({"number": number_of(row["id"])}, answers(row["email"]), expert)


@ADMIN.add(4, "Look up the orders whose status is {{status}}")
def filtered_orders(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A table with a filter."""
    current = outer_text("div.admin__data-grid-filters-current")
    for status in STATUSES:
        check = shows("last", current, status)
        expert = (*clicks("Orders"), *selects(Status=status), *presses("Apply Filters"), *stops())
        expected = arrives("__SHOPPING_ADMIN__/sales/order/", check)
        yield Instance({"status": status}, expected, expert)


@ADMIN.add(5, "Cancel order {{number}}")
def cancel(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """An order that is not shipped yet."""
    query = "SELECT id FROM purchase WHERE status IN ('Pending', 'Processing') ORDER BY id"
    for row in dice.sample(rows(database, query), 20):
        check = equals(_ORDER.format(row["id"]), outer_text("#order_status"), "Canceled")
        expert = (*_order(row["id"]), *presses("Cancel Order"), *stops())
        yield Instance({"number": number_of(row["id"])}, leaves(check), expert)


@ADMIN.add(6, "Set the price of the {{product}} to ${{price}}")
def reprice(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A new price, which the shop shows, too."""
    for row in dice.sample(rows(database, "SELECT * FROM product ORDER BY id"), 20):
        price = money(row["price"] + 101 + 7 * dice.below(90)).lstrip("$")
        url = f"__SHOPPING_ADMIN__/catalog/product/edit/id/{row['id']}/"
        checks = (
            equals(url, value_of("product[price]"), price),
            shows(f"__SHOPPING__/{row['slug']}.html", outer_text(".price"), price),
        )
        expert = (*_product(row["name"]), *fills(Price=price), *presses("Save"), *stops())
        yield Instance({"product": row["name"], "price": price}, leaves(*checks), expert)


@ADMIN.add(7, "Take the {{product}} out of the shop by disabling it")
def disable(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A product that is not sold any more."""
    for row in dice.sample(rows(database, "SELECT * FROM product ORDER BY id"), 14):
        url = f"__SHOPPING_ADMIN__/catalog/product/edit/id/{row['id']}/"
        expert = (
            *_product(row["name"]),
            *selects(Enable_Product="No"),
            *presses("Save"),
            *stops(),
        )
        check = equals(url, value_of("product[status]"), "2")
        yield Instance({"product": row["name"]}, leaves(check), expert)


@ADMIN.add(8, "Approve the pending review by {{nickname}} of the {{product}}")
def approve(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A review that waits for moderation."""
    query = (
        "SELECT r.id, r.nickname, p.name FROM review r JOIN product p ON p.id = r.product"
        " WHERE r.status = 2 ORDER BY r.id"
    )
    for row in dice.sample(rows(database, query), 16):
        url = f"__SHOPPING_ADMIN__/review/product/edit/id/{row['id']}"
        expert = (
            *clicks("Reviews"),
            *fills(Nickname=row["nickname"], Product=row["name"]),
            *presses("Apply Filters"),
            *clicks(str(row["id"])),
            *selects(Status="Approved"),
            *presses("Save Review"),
            *stops(),
        )
        slots = {"nickname": row["nickname"], "product": row["name"]}
        yield Instance(slots, leaves(equals(url, value_of("status_id"), "1")), expert)


@ADMIN.add(9, 'Add a comment to order {{number}} that says "{{message}}"')
def comment(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A note on an order."""
    for row in dice.sample(rows(database, "SELECT id FROM purchase ORDER BY id"), 16):
        message = dice.pick(_MESSAGES)
        notes = outer_text("#order_history_block .note-list")
        expert = (
            *_order(row["id"]),
            *fills(Comment=message),
            *presses("Submit Comment"),
            *stops(),
        )
        slots = {"number": number_of(row["id"]), "message": message}
        check = shows(_ORDER.format(row["id"]), notes, message)
        yield Instance(slots, leaves(check), expert)


@ADMIN.add(
    10,
    'Make a cart price rule named "{{name}}" with the coupon code {{code}} that takes'
    " {{percent}} percent off",
    split="test",
)
def price_rule(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A new coupon."""
    for line in dice.sample(data.LINES, 14):
        percent = 11 + dice.below(40)
        name, code = f"{line} sale", f"{line.upper()}{percent}"
        expert = (
            *clicks("Cart Price Rules", "Add New Rule"),
            *fills(Rule_Name=name, Coupon_Code=code, Discount_Amount=str(percent)),
            *presses("Save Rule"),
            *stops(),
        )
        check = shows(
            "__SHOPPING_ADMIN__/sales_rule/promo_quote/",
            outer_text(".data-grid"),
            name,
            code,
            f"{percent}%",
        )
        slots = {"name": name, "code": code, "percent": percent}
        yield Instance(slots, leaves(check), expert)


@ADMIN.add(11, "Show the orders report by {{period}} from {{begin}} to {{end}}")
def report(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A report of a span of time."""
    for begin in dice.sample(range(1, 21), 16):
        days = []
        for month in (begin, begin + 1 + dice.below(4)):
            year, index = 2022 + (month - 1) // 12, (month - 1) % 12 + 1
            days.append(f"{year}-{index:02d}-{1 + dice.below(28):02d}")
        period = dice.pick(("day", "month", "year"))
        expert = (
            *clicks("Orders Report"),
            *selects(Period=period.capitalize()),
            *fills(From=days[0], To=days[1]),
            *presses("Show Report"),
            *stops(),
        )
        url = "__SHOPPING_ADMIN__/reports/report_sales/sales/"
        query = f"period_type={period}&from={days[0]}&to={days[1]}"
        slots = {"period": period, "begin": days[0], "end": days[1]}
        yield Instance(slots, arrives(f"{url}?{query}"), expert)


@ADMIN.add(12, "Ship order {{number}} with the tracking number {{tracking}}")
def ship(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """An order that is on its way."""
    query = "SELECT id FROM purchase WHERE status IN ('Pending', 'Processing') ORDER BY id"
    for row in dice.sample(rows(database, query), 16):
        tracking = f"TN{100000 + dice.below(900000)}"
        url = _ORDER.format(row["id"])
        checks = (
            equals(url, outer_text("#order_status"), "Complete"),
            shows(url, outer_text("#order_history_block .note-list"), tracking),
        )
        expert = (
            *_order(row["id"]),
            *fills(Tracking_Number=tracking),
            *presses("Ship"),
            *stops(),
        )
        slots = {"number": number_of(row["id"]), "tracking": tracking}
        yield Instance(slots, leaves(*checks), expert)


@ADMIN.add(13, "What is the number {{rank}} search term by uses, and how often was it used?")
def search_term(database: sqlite3.Connection, dice: Dice) -> Iterator[Instance]:
    """A row of a table that has been sorted; no two terms are used equally often."""
    terms = one_of_each(rows(database, "SELECT * FROM term ORDER BY uses DESC"), "uses")
    for rank, row in enumerate(terms[:10], 1):
        expert = (
            *clicks("Search Terms"),
            *selects(Sort_By="Uses", Direction="Descending"),
            *presses("Apply Filters"),
            *stops(f"{row['text']}: {row['uses']}"),
        )
        yield Instance({"rank": rank}, answers(row["text"], str(row["uses"])), expert)
