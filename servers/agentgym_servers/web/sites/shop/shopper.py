"""Who visits the shop, and the frame round every page of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from agentgym_servers.web.sites.pages import Visit, redirect, render
from agentgym_servers.web.sites.shop.data import MAX_CENTS, PACKAGE, money, number_of
from agentgym_servers.web.sites.site import Response

LOG_IN = "/customer/account/login/"
_AMOUNT = re.compile(r"\$?([0-9]{1,6})(?:\.([0-9]{1,2}))?")


class Shopper(msgspec.Struct, frozen=True):
    """A visitor: a customer, a guest with a cart, or somebody who has done nothing yet."""

    token: str
    customer: int
    """0 for a guest."""

    @property
    def owner(self) -> str:
        """Whose cart it is: a customer has the same one after every log-in."""
        return f"customer {self.customer}" if self.customer else f"guest {self.token}"


def shopper_of(visit: Visit) -> Shopper:
    """Who sends this request; a cookie that is not known counts as none."""
    token = visit.cookie("session")
    row = visit.one("SELECT customer FROM visit WHERE token = ? AND admin = 0", token)
    return Shopper("", 0) if row is None else Shopper(token, row["customer"])


def begin_visit(visit: Visit, customer: int = 0, *, admin: int = 0) -> str:
    """A new visit's cookie."""
    count = visit.run("INSERT INTO visit VALUES (NULL, ?, ?, '')", customer, admin)
    token = f"v{count:023d}"
    visit.run("UPDATE visit SET token = ? WHERE rowid = ?", token, count)
    return token


def settle(visit: Visit) -> tuple[Shopper, Mapping[str, str]]:
    """Who sends this request, with a visit begun and a cookie to set if there was none."""
    shopper = shopper_of(visit)
    if shopper.token:
        return shopper, {}
    token = begin_visit(visit)
    return Shopper(token, 0), {"session": token}


def notice(visit: Visit, token: str, text: str) -> None:
    """Show a message on the next page."""
    visit.run("UPDATE visit SET notice = ? WHERE token = ?", text, token)


def back(visit: Visit, text: str, location: str) -> Response:
    """Redirect to a page with the result of the form."""
    shopper, cookies = settle(visit)
    notice(visit, shopper.token, text)
    return redirect(location, cookies)


def page(visit: Visit, template: str, *, status: int = 200, **values: object) -> Response:
    """A page of the shop, with its header, categories and footer."""
    shopper = shopper_of(visit)
    customer = visit.one("SELECT * FROM customer WHERE id = ?", shopper.customer)
    count = visit.one(
        "SELECT coalesce(sum(quantity), 0) AS count FROM basket_line WHERE owner = ?", shopper.owner
    )
    body = render(
        PACKAGE,
        template,
        customer=customer,
        categories=visit.all("SELECT name, slug FROM category ORDER BY id"),
        in_cart=count["count"] if count else 0,
        notice=take_notice(visit, shopper.token),
        money=money,
        number_of=number_of,
        **values,
    )
    return Response(body, status)


def take_notice(visit: Visit, token: str) -> str:
    """The messages of this page, shown once."""
    row = visit.one("SELECT notice FROM visit WHERE token = ?", token)
    if row is None or not row["notice"]:
        return ""
    notice(visit, token, "")
    return str(row["notice"])


def missing(visit: Visit) -> Response:
    """The page for what is not there."""
    words = "We can't find the page you are looking for."
    return page(visit, "plain.html", status=404, title="Whoops, our bad...", words=words)


def refused(visit: Visit, words: str) -> Response:
    """The page for a form that no page of ours has."""
    return page(visit, "plain.html", status=400, title="Something is not right", words=words)


def cents(text: str) -> int | None:
    """A price such as 12, 12.5 or $12.50, or None."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    amount = 100 * int(match[1]) + int((match[2] or "").ljust(2, "0"))
    return amount if amount <= MAX_CENTS else None
