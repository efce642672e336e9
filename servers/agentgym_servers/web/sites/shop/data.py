"""The shop's data: products, people, orders and reviews, drawn from a seed."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeVar

from agentgym_servers.web.sites.pages import make_database
from agentgym_servers.web.sites.site import ACCOUNTS

PACKAGE: Final = "agentgym_servers.web.sites.shop"

NOW: Final = "2024-01-02 10:00:00"
"""The shop's clock stands still: what an episode adds carries this time."""

CUSTOMER: Final = ACCOUNTS["shopping"].username

CUSTOMER_PASSWORD: Final = ACCOUNTS["shopping"].password

ADMIN: Final = ACCOUNTS["shopping_admin"].username

ADMIN_PASSWORD: Final = ACCOUNTS["shopping_admin"].password

STATUSES: Final = ("Pending", "Processing", "On Hold", "Suspected Fraud", "Complete", "Canceled")

GROUPS: Final = ("General", "Wholesale", "Retailer")

REVIEW_STATUSES: Final = {1: "Approved", 2: "Pending", 3: "Not Approved"}

SHIPPING: Final = {"flatrate": ("Flat Rate", 500), "tablerate": ("Best Way", 1200)}
"""Name and cents of a shipping method."""

MAX_QUANTITY: Final = 1000
"""Of one product in a cart."""

MAX_CENTS: Final = 10_000_000

SCHEMA: Final = """
CREATE TABLE category (id INTEGER PRIMARY KEY, name TEXT, slug TEXT UNIQUE);
CREATE TABLE product (
    id INTEGER PRIMARY KEY, sku TEXT UNIQUE, name TEXT, slug TEXT UNIQUE, category INTEGER,
    brand TEXT, price INTEGER, quantity INTEGER, enabled INTEGER, colours TEXT, sizes TEXT,
    description TEXT
);
CREATE TABLE customer (
    id INTEGER PRIMARY KEY, email TEXT UNIQUE, password TEXT, first TEXT, last TEXT, since TEXT,
    class TEXT, subscribed INTEGER
);
CREATE TABLE address (
    id INTEGER PRIMARY KEY, customer INTEGER, name TEXT, phone TEXT, street TEXT, city TEXT,
    region TEXT, postcode TEXT, billing INTEGER, shipping INTEGER
);
CREATE TABLE purchase (
    id INTEGER PRIMARY KEY, customer INTEGER, placed TEXT, status TEXT, name TEXT, street TEXT,
    city TEXT, region TEXT, postcode TEXT, phone TEXT, method TEXT, coupon TEXT,
    subtotal INTEGER, discount INTEGER, shipping INTEGER, total INTEGER
);
CREATE TABLE line (
    id INTEGER PRIMARY KEY, purchase INTEGER, product INTEGER, options TEXT, price INTEGER,
    quantity INTEGER
);
CREATE TABLE note (id INTEGER PRIMARY KEY, purchase INTEGER, made TEXT, status TEXT, text TEXT);
CREATE TABLE review (
    id INTEGER PRIMARY KEY, product INTEGER, nickname TEXT, title TEXT, detail TEXT,
    rating INTEGER, status INTEGER, made TEXT
);
CREATE TABLE term (id INTEGER PRIMARY KEY, text TEXT UNIQUE, results INTEGER, uses INTEGER);
CREATE TABLE rule (
    id INTEGER PRIMARY KEY, name TEXT, code TEXT, kind TEXT, amount INTEGER, active INTEGER
);
CREATE TABLE visit (token TEXT PRIMARY KEY, customer INTEGER, admin INTEGER, notice TEXT);
CREATE TABLE basket (owner TEXT PRIMARY KEY, coupon TEXT);
CREATE TABLE basket_line (
    id INTEGER PRIMARY KEY, owner TEXT, product INTEGER, options TEXT, quantity INTEGER
);
CREATE TABLE wish (id INTEGER PRIMARY KEY, customer INTEGER, product INTEGER);
CREATE TABLE comparison (id INTEGER PRIMARY KEY, owner TEXT, product INTEGER);
CREATE TABLE message (id INTEGER PRIMARY KEY, name TEXT, email TEXT, phone TEXT, text TEXT);
CREATE INDEX product_of ON product (category);
CREATE INDEX line_of ON line (purchase);
CREATE INDEX line_for ON line (product);
CREATE INDEX review_of ON review (product);
CREATE INDEX purchase_of ON purchase (customer);
"""


def money(cents: int) -> str:
    """Cents as a shop prints them."""
    return f"${cents / 100:.2f}"


def number_of(purchase: int) -> str:
    """The number of an order, as it is printed."""
    return f"{purchase:09d}"


class Kind(NamedTuple):
    """A category, what is in it, and in which variants."""

    name: str
    things: tuple[str, ...]
    cents: tuple[int, int]
    colours: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()


_DARK = ("Black", "Navy", "Silver")

_WARM = ("Amber", "Ivory", "Sage")

_CLOTHES = ("S", "M", "L", "XL")

KINDS: Final = (
    Kind("Headphones", ("Headphones", "Earbuds", "Headset", "Neckband"), (1900, 18900), _DARK),
    Kind("Keyboards", ("Keyboard", "Number Pad", "Trackball", "Wrist Rest"), (1200, 14900), _DARK),
    Kind("Lamps", ("Desk Lamp", "Floor Lamp", "Night Light", "Lantern"), (1500, 12900), _WARM),
    Kind("Kitchen", ("Kettle", "Skillet", "Mixing Bowl", "Grater"), (900, 9900), _WARM),
    Kind("Candles", ("Taper Candles", "Pillar Candle", "Tea Lights", "Sconce"), (500, 4900), _WARM),
    Kind("Backpacks", ("Backpack", "Tote", "Messenger Bag", "Pouch"), (1400, 13900), _DARK),
    Kind("Jackets", ("Jacket", "Vest", "Parka", "Pullover"), (2900, 21900), _DARK, _CLOTHES),
    Kind("Shoes", ("Sneakers", "Sandals", "Boots", "Slippers"), (1900, 15900), _DARK, _CLOTHES),
    Kind("Tea", ("Green Tea", "Black Tea", "Herbal Tea", "Tea Sampler"), (400, 3900)),
    Kind("Garden", ("Watering Can", "Trowel", "Planter", "Bird Feeder"), (700, 8900), _WARM),
    Kind("Puzzles", ("Jigsaw", "Wooden Puzzle", "Card Game", "Dice Set"), (600, 5900)),
    Kind(
        "Fitness", ("Yoga Mat", "Jump Rope", "Foam Roller", "Resistance Band"), (800, 7900), _DARK
    ),
)

BRANDS: Final = (
    "Auvera", "Brindlo", "Cavena", "Dorwick", "Elmora", "Fennoway", "Galdrin", "Hollimar",
    "Ivendale", "Jorvane", "Kestrio", "Lumora", "Mirefold", "Norwend", "Ospra", "Pellago",
    "Quillon", "Rovanta", "Sundrell", "Tavisk",
)  # fmt: skip

LINES: Final = (
    "Drift", "Harbor", "Summit", "Meadow", "Ember", "Cobalt", "Willow", "Orbit", "Canyon",
    "Breeze", "Juniper", "Anchor", "Velvet", "Prairie", "Glacier", "Saffron",
)  # fmt: skip

FEATURES: Final = (
    "Made to last and easy to clean.",
    "Comes with a two year warranty.",
    "Packed in paper only, without plastic.",
    "A favourite of our customers since its launch.",
    "Designed in small batches by people who use it themselves.",
    "Light enough to take along on a trip.",
)

FIRST_NAMES: Final = (
    "Abel", "Bianca", "Cyrus", "Delia", "Ezra", "Farah", "Gideon", "Hanna", "Idris", "Jolene",
    "Kamal", "Lena", "Milo", "Nadia", "Orson", "Petra", "Quincy", "Rhea", "Silas", "Thea",
    "Umar", "Vera", "Wendell", "Xenia", "Yusuf", "Zelda",
)  # fmt: skip

LAST_NAMES: Final = (
    "Ashdown", "Birchall", "Corrigan", "Dunmore", "Eastwick", "Farrow", "Gladwin", "Hartnell",
    "Inskip", "Jessop", "Kirkwood", "Larkin", "Marchbank", "Nettleton", "Oakhurst", "Penhale",
)  # fmt: skip

STREETS: Final = (
    "Willow Way",
    "Mill Lane",
    "Station Road",
    "Cedar Street",
    "Harbor View",
    "Elm Court",
)

PLACES: Final = (
    ("Chicago", "Illinois", "60601"),
    ("Boston", "Massachusetts", "02110"),
    ("Denver", "Colorado", "80203"),
    ("Portland", "Oregon", "97205"),
    ("Austin", "Texas", "78701"),
    ("Pittsburgh", "Pennsylvania", "15213"),
)

PRAISE: Final = (
    "it arrived a day early", "the colour is lovely", "it feels solid", "it was a great gift",
    "my sister wants one too", "it is worth the price", "setup took one minute",
)  # fmt: skip

COMPLAINTS: Final = (
    "the box was damaged", "it smells of glue", "it is smaller than expected",
    "the instructions are missing", "the finish scratches easily", "it squeaks",
)  # fmt: skip

TITLES: Final = ("Send it back", "Not for me", "It is fine", "Rather good", "Love it")

SEARCHES: Final = (
    "kettle", "yoga mat", "desk lamp", "boots", "green tea", "wooden puzzle", "backpack",
    "headset", "tea lights", "parka", "planter", "keyboard", "lantern", "dice set", "sandals",
    "skillet", "jump rope", "tote",
)  # fmt: skip

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
    categories = [(i, kind.name, slug(kind.name)) for i, kind in enumerate(KINDS, 1)]
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
    for category, kind in enumerate(KINDS, 1):
        names = [
            (brand, line, thing) for brand in BRANDS for line in LINES for thing in kind.things
        ]
        for brand, line, thing in dice.sample(names, _PER_KIND):
            least, most = kind.cents
            price = least + 10 * dice.below((most - least) // 10)
            while price in prices:
                price += 5
            prices.add(price)
            name = f"{brand} {line} {thing}"
            features = " ".join(dice.sample(FEATURES, 2))
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
    names = [(first, last) for first in FIRST_NAMES for last in LAST_NAMES]
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
        city, region, postcode = dice.pick(PLACES)
        street = f"{1 + dice.below(998)} {dice.pick(STREETS)}"
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
            remarks = [*dice.sample(PRAISE, 1), *dice.sample(COMPLAINTS, 1)]
            if rating == 5:
                remarks = dice.sample(PRAISE, 2)
            elif rating == 1:
                remarks = dice.sample(COMPLAINTS, 2)
            detail = ". ".join(part[0].upper() + part[1:] for part in remarks) + "."
            made = str(_FIRST_DAY + timedelta(minutes=7 * dice.below(_DAYS * 200)))
            status = 2 if dice.below(12) == 0 else 1
            title = TITLES[rating - 1]
            rows.append((len(rows) + 1, product[0], nickname, title, detail, rating, status, made))
    return rows


def _terms(dice: Dice, products: list[Row]) -> list[Row]:
    rows: list[Row] = []
    uses = dice.sample(range(3, 80), len(SEARCHES))
    for number, text in enumerate(SEARCHES, 1):
        results = sum(text in str(product[2]).lower() for product in products)
        rows.append((number, text, results, uses[number - 1]))
    return rows
