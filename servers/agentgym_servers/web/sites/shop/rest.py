"""The part of the shop's REST interface that WebArena's evaluators call."""

from __future__ import annotations

import msgspec

from agentgym_servers.web.sites.pages import Router, Visit, whole
from agentgym_servers.web.sites.shop.data import ADMIN, ADMIN_PASSWORD, number_of, token_of
from agentgym_servers.web.sites.site import Response

ROUTES = Router()
_COLUMNS = {"created_at": "o.placed", "increment_id": "o.id", "entity_id": "o.id"}
_MOST_ORDERS = 100


@ROUTES.post("/rest/default/V1/integration/admin/token/", "/rest/V1/integration/admin/token/")
def token(visit: Visit) -> Response:
    """A token for the admin; the fields of the JSON that was sent stand in the form."""
    if (visit.sent("username"), visit.sent("password")) != (ADMIN, ADMIN_PASSWORD):
        return _json({"message": "The account sign-in was incorrect."}, 401)
    return _json(token_of(ADMIN))


@ROUTES.get("/rest/V1/orders/", "/rest/default/V1/orders/")
def orders(visit: Visit) -> Response:
    """Orders, in one order and of one page."""
    prefix = "searchCriteria[sortOrders][0]"
    column = _COLUMNS.get(visit.asked(f"{prefix}[field]"), "o.id")
    way = "DESC" if visit.asked(f"{prefix}[direction]").upper() == "DESC" else "ASC"
    size = whole(visit.asked("searchCriteria[pageSize]"), 1, _MOST_ORDERS) or _MOST_ORDERS
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
