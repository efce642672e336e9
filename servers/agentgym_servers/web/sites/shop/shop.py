"""The shop and its admin as one site: two hosts, one database."""

from __future__ import annotations

import sqlite3
from typing import Final

from agentgym_servers.web.sites.pages import Visit
from agentgym_servers.web.sites.shop import (
    account,
    back_office,
    browse,
    data,
    rest,
)
from agentgym_servers.web.sites.shop import (
    account as orders,
)
from agentgym_servers.web.sites.shop import (
    back_office as back_catalog,
)
from agentgym_servers.web.sites.shop import (
    back_office as back_sales,
)
from agentgym_servers.web.sites.shop import (
    browse as cart,
)
from agentgym_servers.web.sites.shop.back_office import staff_missing
from agentgym_servers.web.sites.shop.shopper import missing
from agentgym_servers.web.sites.site import Request, Response, host_of

_FRONT = (browse.ROUTES, cart.CART_ROUTES, account.ROUTES, orders.ORDER_ROUTES, rest.ROUTES)
_BACK = (back_office.ROUTES, back_sales.SALES_ROUTES, back_catalog.CATALOG_ROUTES, rest.ROUTES)


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
