"""A customer's account: login, addresses and wish list."""

from __future__ import annotations

import sqlite3

from agentgym_servers.web.sites.pages import Handler, Router, Visit, redirect, whole
from agentgym_servers.web.sites.shop.browse import sent_product
from agentgym_servers.web.sites.shop.data import NOW, hashed
from agentgym_servers.web.sites.shop.shopper import (
    LOG_IN,
    back,
    begin_visit,
    missing,
    notice,
    page,
    refused,
    shopper_of,
)
from agentgym_servers.web.sites.site import Response

ROUTES = Router()

DASHBOARD = "/customer/account/"

_ADDRESSES = "/customer/address/"

_ADDRESS_FIELDS = ("name", "phone", "street", "city", "region", "postcode")

_NO_ADDRESS = dict.fromkeys(("id", *_ADDRESS_FIELDS, "billing", "shipping"), "")

_MAX_ADDRESSES = 100


def members(handler: Handler) -> Handler:
    """Send guests to the log-in instead."""

    def handle(visit: Visit) -> Response:
        return handler(visit) if shopper_of(visit).customer else redirect(LOG_IN)

    return handle


@ROUTES.get(LOG_IN)
def login_form(visit: Visit) -> Response:
    """The log-in form."""
    return redirect(DASHBOARD) if shopper_of(visit).customer else page(visit, "login.html")


@ROUTES.post("/customer/account/loginPost/", LOG_IN)
def login(visit: Visit) -> Response:
    """Log a customer in; a guest's cart comes along."""
    email = visit.sent("login[username]").lower()
    customer = visit.one(
        "SELECT id FROM customer WHERE email = ? AND password = ?",
        email,
        hashed(email, visit.sent("login[password]")),
    )
    if customer is None:
        words = "The account sign-in was incorrect. Please wait and try again later."
        return back(visit, words, LOG_IN)
    return _enter(visit, customer["id"], "")


@ROUTES.get("/customer/account/logout/")
def logout(visit: Visit) -> Response:
    """Forget who the visitor is."""
    visit.run("DELETE FROM visit WHERE token = ? AND admin = 0", visit.cookie("session"))
    answer = page(visit, "plain.html", title="You are signed out", words="See you soon.")
    return Response(answer.body, cookies={"session": None})


@ROUTES.get("/customer/account/create/")
def create_form(visit: Visit) -> Response:
    """The form for a new customer."""
    return page(visit, "create.html")


@ROUTES.post("/customer/account/createpost/")
def create(visit: Visit) -> Response:
    """Make a new customer and log in."""
    first, last = visit.sent("firstname")[:80], visit.sent("lastname")[:80]
    email, password = visit.sent("email").lower()[:120], visit.sent("password")
    words = ""
    if not first or not last or "@" not in email:
        words = "Please fill in your name and a valid email address."
    elif len(password) < 8 or password != visit.sent("password_confirmation"):
        words = "Please enter the same password twice, of at least 8 characters."
    elif visit.one("SELECT 1 FROM customer WHERE email = ?", email):
        words = "There is already an account with this email address."
    if words:
        return back(visit, words, "/customer/account/create/")
    values = (email, hashed(email, password), first, last, NOW)
    number = visit.run("INSERT INTO customer VALUES (NULL, ?, ?, ?, ?, ?, 'General', 0)", *values)
    return _enter(visit, number, "Thank you for registering with One Stop Market.")


@ROUTES.get(DASHBOARD)
@members
def dashboard(visit: Visit) -> Response:
    """The customer at a glance."""
    customer = shopper_of(visit).customer
    orders = visit.all(
        "SELECT * FROM purchase WHERE customer = ? ORDER BY id DESC LIMIT 5", customer
    )
    return page(
        visit,
        "account.html",
        orders=orders,
        billing=_default_address(visit, customer, "billing"),
        shipping=_default_address(visit, customer, "shipping"),
    )


@ROUTES.get(_ADDRESSES)
@members
def addresses(visit: Visit) -> Response:
    """The address book."""
    customer = shopper_of(visit).customer
    others = visit.all(
        "SELECT * FROM address WHERE customer = ? AND billing = 0 AND shipping = 0 ORDER BY id",
        customer,
    )
    return page(
        visit,
        "addresses.html",
        others=others,
        billing=_default_address(visit, customer, "billing"),
        shipping=_default_address(visit, customer, "shipping"),
    )


@ROUTES.get("/customer/address/new/", "/customer/address/edit/id/{id}/")
@members
def address_form(visit: Visit) -> Response:
    """The form of a new address or an old one."""
    address = _own_address(visit)
    if address is None and visit.arguments:
        return missing(visit)
    return page(visit, "address.html", address=address or _NO_ADDRESS)


@ROUTES.post("/customer/address/formPost/", "/customer/address/formPost/id/{id}/")
@members
def save_address(visit: Visit) -> Response:
    """Store an address."""
    customer = shopper_of(visit).customer
    address = _own_address(visit)
    if address is None and visit.arguments:
        return missing(visit)
    values = [visit.sent(field)[:200] for field in _ADDRESS_FIELDS]
    if not all(values):
        return back(visit, "Please fill in every field of the address.", _ADDRESSES)
    if address is None:
        if _address_count(visit, customer) >= _MAX_ADDRESSES:
            return back(visit, "The address book is full.", _ADDRESSES)
        marks = ", ".join("?" * 7)
        number = visit.run(f"INSERT INTO address VALUES (NULL, {marks}, 0, 0)", customer, *values)
    else:
        number = address["id"]
        assigned = ", ".join(f"{field} = ?" for field in _ADDRESS_FIELDS)
        visit.run(f"UPDATE address SET {assigned} WHERE id = ?", *values, number)
    for use in ("billing", "shipping"):
        if visit.sent(f"default_{use}") == "1":
            visit.run(f"UPDATE address SET {use} = (id = ?) WHERE customer = ?", number, customer)
    return back(visit, "You saved the address.", _ADDRESSES)


@ROUTES.post("/customer/address/delete/id/{id}/")
@members
def delete_address(visit: Visit) -> Response:
    """Forget an address that is no default."""
    customer = shopper_of(visit).customer
    visit.run(
        "DELETE FROM address WHERE id = ? AND customer = ? AND billing = 0 AND shipping = 0",
        visit.number("id"),
        customer,
    )
    return back(visit, "You deleted the address.", _ADDRESSES)


@ROUTES.get("/newsletter/manage/")
@members
def newsletter(visit: Visit) -> Response:
    """Whether the customer gets the newsletter."""
    return page(visit, "newsletter.html")


@ROUTES.post("/newsletter/manage/save/")
@members
def save_newsletter(visit: Visit) -> Response:
    """Subscribe to the newsletter or not."""
    wanted = visit.sent("is_subscribed") == "1"
    customer = shopper_of(visit).customer
    visit.run("UPDATE customer SET subscribed = ? WHERE id = ?", wanted, customer)
    words = "We have saved your subscription." if wanted else "We have removed your subscription."
    return back(visit, words, DASHBOARD)


@ROUTES.get("/wishlist/")
@members
def wish_list(visit: Visit) -> Response:
    """What the customer wishes for."""
    wishes = visit.all(
        "SELECT w.id, p.name, p.slug, p.price FROM wish w"
        " JOIN product p ON p.id = w.product WHERE w.customer = ? AND p.enabled = 1 ORDER BY w.id",
        shopper_of(visit).customer,
    )
    return page(visit, "wishlist.html", wishes=wishes)


@ROUTES.post("/wishlist/index/add/")
@members
def wish(visit: Visit) -> Response:
    """Put a product on the wish list."""
    product = sent_product(visit)
    if product is None:
        return refused(visit, "There is no such product.")
    customer = shopper_of(visit).customer
    visit.run("DELETE FROM wish WHERE customer = ? AND product = ?", customer, product["id"])
    visit.run("INSERT INTO wish VALUES (NULL, ?, ?)", customer, product["id"])
    words = f"{product['name']} has been added to your Wish List."
    return back(visit, words, "/wishlist/")


@ROUTES.post("/wishlist/index/remove/")
@members
def unwish(visit: Visit) -> Response:
    """Take a product off the wish list."""
    number = whole(visit.sent("item")) or 0
    customer = shopper_of(visit).customer
    visit.run("DELETE FROM wish WHERE id = ? AND customer = ?", number, customer)
    return redirect("/wishlist/")


@ROUTES.get("/contact/")
def contact_form(visit: Visit) -> Response:
    """The form to write to the shop."""
    return page(visit, "contact.html")


@ROUTES.post("/contact/index/post/")
def contact(visit: Visit) -> Response:
    """Store a message to the shop."""
    values = [visit.sent(field) for field in ("name", "email", "telephone", "comment")]
    if not (values[0] and "@" in values[1] and values[3]):
        return back(visit, "Please enter your name, your email and a comment.", "/contact/")
    visit.run("INSERT INTO message VALUES (NULL, ?, ?, ?, ?)", *values)
    return back(visit, "Thanks for contacting us with your comments and questions.", "/contact/")


def _enter(visit: Visit, customer: int, words: str) -> Response:
    guest = shopper_of(visit)
    token = begin_visit(visit, customer)
    if guest.token and not guest.customer:
        owner = f"customer {customer}"
        visit.run("UPDATE basket_line SET owner = ? WHERE owner = ?", owner, guest.owner)
    notice(visit, token, words)
    return redirect(DASHBOARD, {"session": token})


def _own_address(visit: Visit) -> sqlite3.Row | None:
    customer = shopper_of(visit).customer
    query = "SELECT * FROM address WHERE id = ? AND customer = ?"
    return visit.one(query, visit.number("id"), customer)


def _default_address(visit: Visit, customer: int, use: str) -> sqlite3.Row | None:
    return visit.one(f"SELECT * FROM address WHERE customer = ? AND {use} = 1", customer)


def _address_count(visit: Visit, customer: int) -> int:
    row = visit.one("SELECT count(*) AS count FROM address WHERE customer = ?", customer)
    return int(row["count"]) if row else 0
