"""The tables of the shop, and the few values that rows and pages agree on."""

from __future__ import annotations

from typing import Final

from agentgym_servers.web.accounts import ACCOUNTS

PACKAGE: Final = "agentgym_servers.web.shop"
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
