"""The shop's data: products, people, orders and reviews, drawn from a seed."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from agentgym_servers.web.pages import make_database
from agentgym_servers.web.shop import words
from agentgym_servers.web.shop.schema import (
    ADMIN,
    CUSTOMER,
    CUSTOMER_PASSWORD,
    GROUPS,
    SCHEMA,
    SHIPPING,
)

Row = tuple[object, ...]
_T = TypeVar("_T")
_CUSTOMERS = 40
_PURCHASES = 260
_PER_KIND = 17
_REVIEWS = 600
_FIRST_DAY = datetime(2022, 1, 3, 8)
_DAYS = 720


class Dice:
    """Draws that depend on a seed and on nothing else, not even on Python's version."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1."""
        return int(self._random() * bound)

    def pick(self, choices: Sequence[_T]) -> _T:
        """One of the choices."""
        return choices[self.below(len(choices))]

    def sample(self, choices: Sequence[_T], count: int) -> list[_T]:
        """Some of the choices, each at most once, in the order drawn."""
        left = list(choices)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]


def build(seed: int) -> sqlite3.Connection:
    """The shop as every episode begins with it."""
    dice = Dice(seed)
    products = _products(dice)
    customers, addresses = _people(dice)
    purchases, lines, notes = _purchases(dice, products, addresses)
    categories = [(i, kind.name, slug(kind.name)) for i, kind in enumerate(words.KINDS, 1)]
    database = make_database(
        SCHEMA,
        {
            "category": categories,
            "product": products,
            "customer": customers,
            "address": addresses,
            "purchase": purchases,
            "line": lines,
            "note": notes,
            "review": _reviews(dice, products, customers),
            "term": _terms(dice, products),
            "rule": [
                (1, "Ten percent off", "SAVE10", "percent", 10, 1),
                (2, "Five dollars off", "FIVEOFF", "fixed", 5, 1),
                (3, "Last summer", "SUMMER22", "percent", 20, 0),
            ],
            "visit": [
                *((token_of(str(row[1])), row[0], 0, "") for row in customers),
                (token_of(ADMIN), 0, 1, ""),
            ],
        },
    )
    return database


def slug(name: str) -> str:
    """A name as part of an address."""
    return "-".join(name.lower().split())


def hashed(email: str, password: str) -> str:
    """What is stored of a password."""
    return hashlib.sha256(f"{email}\n{password}".encode()).hexdigest()[:32]


def token_of(account: str) -> str:
    """The cookie of an account's log-in that is there from the start."""
    return hashlib.sha256(f"visit of {account}".encode()).hexdigest()[:24]


def logged_in_cookies(account: str) -> dict[str, str]:
    """What a browser holds that logged in to the shop, by e-mail, or to its admin, by `admin`."""
    return {"admin" if account == ADMIN else "session": token_of(account)}


def _products(dice: Dice) -> list[Row]:
    rows: list[Row] = []
    prices: set[int] = set()
    for category, kind in enumerate(words.KINDS, 1):
        names = [
            (brand, line, thing)
            for brand in words.BRANDS
            for line in words.LINES
            for thing in kind.things
        ]
        for brand, line, thing in dice.sample(names, _PER_KIND):
            least, most = kind.cents
            price = least + 10 * dice.below((most - least) // 10)
            while price in prices:
                price += 5
            prices.add(price)
            name = f"{brand} {line} {thing}"
            features = " ".join(dice.sample(words.FEATURES, 2))
            rows.append(
                (
                    len(rows) + 1,
                    f"OSM-{category:02d}{len(rows) + 1001}",
                    name,
                    slug(name),
                    category,
                    brand,
                    price,
                    0 if dice.below(15) == 0 else 5 + dice.below(120),
                    1,
                    ",".join(kind.colours),
                    ",".join(kind.sizes),
                    f"The {line} {thing.lower()} by {brand}. {features}",
                )
            )
    return rows


def _people(dice: Dice) -> tuple[list[Row], list[Row]]:
    names = [(first, last) for first in words.FIRST_NAMES for last in words.LAST_NAMES]
    people = [("Emma", "Lopez", CUSTOMER)]
    for first, last in dice.sample(names, _CUSTOMERS - 1):
        people.append((first, last, f"{first}.{last}@example.com".lower()))
    customers: list[Row] = []
    addresses: list[Row] = []
    for number, (first, last, email) in enumerate(people, 1):
        since = _FIRST_DAY - timedelta(days=1 + dice.below(400), minutes=dice.below(600))
        password = hashed(email, CUSTOMER_PASSWORD)
        group = "General" if number == 1 else dice.pick(GROUPS)
        customers.append((number, email, password, first, last, str(since), group, 0))
        city, region, postcode = dice.pick(words.PLACES)
        street = f"{1 + dice.below(998)} {dice.pick(words.STREETS)}"
        phone = f"555-{1000 + dice.below(9000)}"
        where = (street, city, region, postcode)
        addresses.append((number, number, f"{first} {last}", phone, *where, 1, 1))
    return customers, addresses


def _purchases(
    dice: Dice, products: list[Row], addresses: list[Row]
) -> tuple[list[Row], list[Row], list[Row]]:
    purchases: list[Row] = []
    lines: list[Row] = []
    notes: list[Row] = []
    minutes = sorted(dice.sample(range(_DAYS * 24 * 6), _PURCHASES))
    for number, minute in enumerate(minutes, 1):
        customer = 1 if number % 7 == 3 else 2 + dice.below(_CUSTOMERS - 1)
        placed = str(_FIRST_DAY + timedelta(minutes=10 * minute))
        status = _status(dice, number)
        subtotal = 0
        for product in dice.sample(products, 1 + dice.below(4)):
            quantity = 1 + (dice.below(3) if dice.below(3) == 0 else 0)
            price = int(str(product[6]))
            subtotal += price * quantity
            chosen = _options(dice, product)
            lines.append((len(lines) + 1, number, product[0], chosen, price, quantity))
        address = addresses[customer - 1]
        shipping = SHIPPING["flatrate"][1]
        where = (address[2], *address[4:8], address[3])
        sums = ("", subtotal, 0, shipping, subtotal + shipping)
        purchases.append((number, customer, placed, status, *where, "Flat Rate", *sums))
        if status in ("Canceled", "On Hold"):
            notes.append((len(notes) + 1, number, placed, status, f"Order set to {status}."))
    return purchases, lines, notes


def _status(dice: Dice, number: int) -> str:
    if number > _PURCHASES - 60:
        return dice.pick(("Pending", "Pending", "Processing", "Complete"))
    unusual = {0: "Canceled", 1: "Canceled", 2: "On Hold", 3: "Suspected Fraud"}
    return unusual.get(dice.below(20), "Complete")


def _options(dice: Dice, product: Row) -> str:
    chosen = []
    for label, column in (("Color", 9), ("Size", 10)):
        if product[column]:
            chosen.append(f"{label}: {dice.pick(str(product[column]).split(','))}")
    return ", ".join(chosen)


def _reviews(dice: Dice, products: list[Row], customers: list[Row]) -> list[Row]:
    writers = [f"{row[3]} {row[4]}" for row in customers[1:]]
    rows: list[Row] = []
    wanted = [dice.pick(products) for _ in range(_REVIEWS)]
    for product in products:
        count = sum(chosen is product for chosen in wanted)
        for nickname in dice.sample(writers, count):
            rating = dice.pick((1, 2, 3, 3, 4, 4, 5, 5, 5))
            said = [*dice.sample(words.PRAISE, 1), *dice.sample(words.COMPLAINTS, 1)]
            if rating == 5:
                said = dice.sample(words.PRAISE, 2)
            elif rating == 1:
                said = dice.sample(words.COMPLAINTS, 2)
            detail = ". ".join(part[0].upper() + part[1:] for part in said) + "."
            made = str(_FIRST_DAY + timedelta(minutes=7 * dice.below(_DAYS * 200)))
            status = 2 if dice.below(12) == 0 else 1
            title = words.TITLES[rating - 1]
            rows.append((len(rows) + 1, product[0], nickname, title, detail, rating, status, made))
    return rows


def _terms(dice: Dice, products: list[Row]) -> list[Row]:
    rows: list[Row] = []
    uses = dice.sample(range(3, 80), len(words.SEARCHES))
    for number, text in enumerate(words.SEARCHES, 1):
        results = sum(text in str(product[2]).lower() for product in products)
        rows.append((number, text, results, uses[number - 1]))
    return rows
