"""The shop and its admin as one site: two hosts, one database.

It also serves the part of the REST interface that WebArena's evaluators call.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from agentgym_servers.web.sites.pages import Router, Visit, whole
from agentgym_servers.web.sites.shop import (
    account,
    admin_catalog,
    admin_sales,
    back_office,
    browse,
    cart,
    data,
)
from agentgym_servers.web.sites.shop.back_office import staff_missing
from agentgym_servers.web.sites.shop.data import ADMIN, ADMIN_PASSWORD, number_of, token_of
from agentgym_servers.web.sites.shop.orders import ROUTES as ORDER_ROUTES
from agentgym_servers.web.sites.shop.shopper import missing
from agentgym_servers.web.sites.site import Request, Response, host_of

ROUTES = Router()

_COLUMNS = {"created_at": "o.placed", "increment_id": "o.id", "entity_id": "o.id"}

_MAX_ORDERS = 100


@ROUTES.post("/rest/default/V1/integration/admin/token/", "/rest/V1/integration/admin/token/")
def token(visit: Visit) -> Response:
    """A token for the admin; the form has the fields of the JSON that was sent."""
    if (visit.sent("username"), visit.sent("password")) != (ADMIN, ADMIN_PASSWORD):
        return _json({"message": "The account sign-in was incorrect."}, 401)
    return _json(token_of(ADMIN))


@ROUTES.get("/rest/V1/orders/", "/rest/default/V1/orders/")
def orders(visit: Visit) -> Response:
    """Orders, in one order and of one page."""
    prefix = "searchCriteria[sortOrders][0]"
    column = _COLUMNS.get(visit.query(f"{prefix}[field]"), "o.id")
    way = "DESC" if visit.query(f"{prefix}[direction]").upper() == "DESC" else "ASC"
    size = whole(visit.query("searchCriteria[pageSize]"), 1, _MAX_ORDERS) or _MAX_ORDERS
    rows = visit.all(
        "SELECT o.*, c.email FROM purchase o JOIN customer c ON c.id = o.customer"
        f" ORDER BY {column} {way}, o.id {way} LIMIT {size}"
    )
    listed = [
        {
            "entity_id": row["id"],
            "increment_id": number_of(row["id"]),
            "created_at": row["placed"],
            "customer_email": row["email"],
            "status": row["status"],
            "grand_total": row["total"] / 100,
        }
        for row in rows
    ]
    return _json({"items": listed, "total_count": len(listed)})


@ROUTES.get("/rest/V1/products/{sku}/reviews/", "/rest/default/V1/products/{sku}/reviews/")
def reviews(visit: Visit) -> Response:
    """The reviews of a product, the latest last, whether they are approved or not."""
    rows = visit.all(
        "SELECT r.* FROM review r JOIN product p ON p.id = r.product WHERE p.sku = ? ORDER BY r.id",
        visit.argument("sku"),
    )
    listed = [
        {
            "id": row["id"],
            "title": row["title"],
            "detail": row["detail"],
            "nickname": row["nickname"],
            "ratings": [
                {"rating_name": "Rating", "percent": 20 * row["rating"], "value": row["rating"]}
            ],
            "review_status": row["status"],
            "created_at": row["made"],
        }
        for row in rows
    ]
    return _json(listed)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value).decode(), status, "application/json")


_FRONT = (browse.ROUTES, cart.ROUTES, account.ROUTES, ORDER_ROUTES, ROUTES)

_BACK = (back_office.ROUTES, admin_sales.ROUTES, admin_catalog.ROUTES, ROUTES)


class Shop:
    """WebArena's shopping and shopping admin; serve it on both hosts."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """Products, customers, orders and reviews; equal for equal seeds."""
        return data.build(seed)

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        """A page of the shop, or of the admin on the admin's host."""
        admin = request.host == host_of("shopping_admin")
        for routes in _BACK if admin else _FRONT:
            response = routes.answer(database, request)
            if response is not None:
                return response
        visit = Visit(database, request)
        return staff_missing(visit) if admin else missing(visit)


SHOP: Final = Shop()
