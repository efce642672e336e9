"""The admin's tables and forms of products, customers, reviews and price rules."""

from __future__ import annotations

from agentgym_servers.web.sites.pages import Router, Visit, whole
from agentgym_servers.web.sites.shop.back_office import (
    Filter,
    Grid,
    grid_page,
    staff,
    staff_back,
    staff_missing,
    staff_page,
)
from agentgym_servers.web.sites.shop.data import GROUPS, REVIEW_STATUSES
from agentgym_servers.web.sites.shop.shopper import cents
from agentgym_servers.web.sites.site import Response

ROUTES = Router()

_MAX_STOCK = 1_000_000

_PRODUCTS = Grid(
    title="Products",
    path="/admin/catalog/product/",
    query="""
        SELECT '/admin/catalog/product/edit/id/' || id || '/' AS row_link, id AS row_id,
            name AS "Name", sku AS "SKU", price AS "Price", quantity AS "Quantity",
            CASE enabled WHEN 1 THEN 'Enabled' ELSE 'Disabled' END AS "Status"
        FROM product
    """,
    columns=("Name", "SKU", "Price", "Quantity", "Status"),
    filters=(
        Filter("Name", "name", "Name"),
        Filter("SKU", "sku", "SKU"),
        Filter("Status", "status", "Status", "is", ("Enabled", "Disabled")),
    ),
    order="row_id",
    cents=("Price",),
)

_CUSTOMERS = Grid(
    title="Customers",
    path="/admin/customer/index/",
    query="""
        SELECT '/admin/customer/index/edit/id/' || id || '/' AS row_link, id AS row_id,
            first || ' ' || last AS "Name", email AS "Email", class AS "Group",
            substr(since, 1, 10) AS "Customer Since"
        FROM customer
    """,
    columns=("Name", "Email", "Group", "Customer Since"),
    filters=(
        Filter("Name", "name", "Name"),
        Filter("Email", "email", "Email"),
        Filter("Group", "group", "Group", "is", GROUPS),
    ),
    order="row_id",
)

_REVIEWS = Grid(
    title="Reviews",
    path="/admin/review/product/",
    query="""
        SELECT '/admin/review/product/edit/id/' || r.id || '/' AS row_link, r.id AS row_id,
            r.id AS "ID", r.nickname AS "Nickname", p.name AS "Product", r.title AS "Title",
            r.rating AS "Rating", CASE r.status WHEN 1 THEN 'Approved' WHEN 2 THEN 'Pending'
            ELSE 'Not Approved' END AS "Status"
        FROM review r JOIN product p ON p.id = r.product
    """,
    columns=("ID", "Nickname", "Product", "Title", "Rating", "Status"),
    filters=(
        Filter("Nickname", "nickname", "Nickname"),
        Filter("Product", "name", "Product"),
        Filter("Status", "status", "Status", "is", tuple(REVIEW_STATUSES.values())),
    ),
)

_TERMS = Grid(
    title="Search Terms",
    path="/admin/search/term/",
    query="""
        SELECT '' AS row_link, id AS row_id, text AS "Search Query", results AS "Results",
            uses AS "Uses"
        FROM term
    """,
    columns=("Search Query", "Results", "Uses"),
    filters=(Filter("Search Query", "query", "Search Query"),),
    order="row_id",
)

_RULES = Grid(
    title="Cart Price Rules",
    path="/admin/sales_rule/promo_quote/",
    query="""
        SELECT '/admin/sales_rule/promo_quote/edit/id/' || id || '/' AS row_link, id AS row_id,
            name AS "Rule", code AS "Coupon Code",
            CASE kind WHEN 'percent' THEN amount || '%' ELSE '$' || amount END AS "Discount",
            CASE active WHEN 1 THEN 'Active' ELSE 'Inactive' END AS "Status"
        FROM rule
    """,
    columns=("Rule", "Coupon Code", "Discount", "Status"),
    filters=(Filter("Rule", "name", "Rule"), Filter("Coupon Code", "coupon_code", "Coupon Code")),
    new="/admin/sales_rule/promo_quote/new/",
)


@ROUTES.get(*(grid.path for grid in (_PRODUCTS, _CUSTOMERS, _REVIEWS, _TERMS, _RULES)))
@staff
def tables(visit: Visit) -> Response:
    """One of the tables."""
    path = visit.request.path.rstrip("/") + "/"
    grids = (_PRODUCTS, _CUSTOMERS, _REVIEWS, _TERMS, _RULES)
    return grid_page(visit, next(grid for grid in grids if grid.path == path))


@ROUTES.get("/admin/catalog/product/edit/id/{id}/")
@staff
def product_form(visit: Visit) -> Response:
    """The form of a product."""
    product = visit.one("SELECT * FROM product WHERE id = ?", visit.number("id"))
    if product is None:
        return staff_missing(visit)
    return staff_page(visit, "admin_product.html", product=product)


@ROUTES.post("/admin/catalog/product/save/id/{id}/")
@staff
def save_product(visit: Visit) -> Response:
    """Change a product."""
    number = visit.number("id")
    if visit.one("SELECT 1 FROM product WHERE id = ?", number) is None:
        return staff_missing(visit)
    where = f"/admin/catalog/product/edit/id/{number}/"
    name, description = visit.sent("product[name]")[:200], visit.sent("product[description]")
    price = cents(visit.sent("product[price]"))
    stock = "product[quantity_and_stock_status][qty]"
    quantity = whole(visit.sent(stock), 0, _MAX_STOCK)
    if not name or price is None or quantity is None:
        return staff_back(visit, "Please enter a name, a price and a quantity.", where)
    visit.run(
        "UPDATE product SET name = ?, description = ?, price = ?, quantity = ?, enabled = ?"
        " WHERE id = ?",
        name,
        description,
        price,
        quantity,
        visit.sent("product[status]") == "1",
        number,
    )
    return staff_back(visit, "You saved the product.", where)


@ROUTES.get("/admin/customer/index/edit/id/{id}/")
@staff
def customer_form(visit: Visit) -> Response:
    """The form of a customer, and their orders."""
    customer = visit.one("SELECT * FROM customer WHERE id = ?", visit.number("id"))
    if customer is None:
        return staff_missing(visit)
    return staff_page(
        visit,
        "admin_customer.html",
        customer=customer,
        groups=GROUPS,
        addresses=visit.all("SELECT * FROM address WHERE customer = ?", customer["id"]),
        orders=visit.all(
            "SELECT * FROM purchase WHERE customer = ? ORDER BY id DESC", customer["id"]
        ),
    )


@ROUTES.post("/admin/customer/index/save/id/{id}/")
@staff
def save_customer(visit: Visit) -> Response:
    """Change a customer."""
    customer = visit.one("SELECT * FROM customer WHERE id = ?", visit.number("id"))
    if customer is None:
        return staff_missing(visit)
    first, last = visit.sent("customer[firstname]")[:80], visit.sent("customer[lastname]")[:80]
    group = visit.sent("customer[group_id]")
    where = f"/admin/customer/index/edit/id/{customer['id']}/"
    if not first or not last or group not in GROUPS:
        return staff_back(visit, "Please enter a name and choose a group.", where)
    query = "UPDATE customer SET first = ?, last = ?, class = ? WHERE id = ?"
    visit.run(query, first, last, group, customer["id"])
    return staff_back(visit, "You saved the customer.", where)


@ROUTES.get("/admin/review/product/edit/id/{id}/")
@staff
def review_form(visit: Visit) -> Response:
    """The form of a review."""
    review = visit.one(
        "SELECT r.*, p.name FROM review r JOIN product p ON p.id = r.product WHERE r.id = ?",
        visit.number("id"),
    )
    if review is None:
        return staff_missing(visit)
    return staff_page(visit, "admin_review.html", review=review, statuses=REVIEW_STATUSES)


@ROUTES.post("/admin/review/product/save/id/{id}/", "/admin/review/product/delete/id/{id}/")
@staff
def save_review(visit: Visit) -> Response:
    """Approve a review, refuse it, or delete it."""
    number = visit.number("id")
    if visit.one("SELECT 1 FROM review WHERE id = ?", number) is None:
        return staff_missing(visit)
    if "/delete/" in visit.request.path:
        visit.run("DELETE FROM review WHERE id = ?", number)
        return staff_back(visit, "The review has been deleted.", _REVIEWS.path)
    status = whole(visit.sent("status_id"), 1, len(REVIEW_STATUSES))
    where = f"/admin/review/product/edit/id/{number}/"
    if status is None:
        return staff_back(visit, "Please choose a status.", where)
    visit.run("UPDATE review SET status = ? WHERE id = ?", status, number)
    return staff_back(visit, "You saved the review.", where)


@ROUTES.get("/admin/sales_rule/promo_quote/new/", "/admin/sales_rule/promo_quote/edit/id/{id}/")
@staff
def rule_form(visit: Visit) -> Response:
    """The form of a price rule."""
    rule = visit.one("SELECT * FROM rule WHERE id = ?", visit.number("id"))
    if rule is None and visit.arguments:
        return staff_missing(visit)
    return staff_page(visit, "admin_rule.html", rule=rule)


@ROUTES.post("/admin/sales_rule/promo_quote/save/", "/admin/sales_rule/promo_quote/save/id/{id}/")
@staff
def save_rule(visit: Visit) -> Response:
    """Make a price rule or change it."""
    number = visit.number("id")
    if visit.arguments and visit.one("SELECT 1 FROM rule WHERE id = ?", number) is None:
        return staff_missing(visit)
    name, code = visit.sent("name")[:120], visit.sent("coupon_code")[:60]
    kind = visit.sent("simple_action")
    most = 100 if kind == "percent" else 10_000
    amount = whole(visit.sent("discount_amount"), 1, most)
    taken = visit.one("SELECT 1 FROM rule WHERE code = ? AND id <> ?", code, number)
    if not name or not code or taken or kind not in ("percent", "fixed") or amount is None:
        words = "Please enter a name, a coupon code of its own, and a discount."
        return staff_back(visit, words, _RULES.path)
    values = (name, code, kind, amount, visit.sent("is_active") == "1")
    visit.run("INSERT OR REPLACE INTO rule VALUES (?, ?, ?, ?, ?, ?)", number or None, *values)
    return staff_back(visit, "You saved the rule.", _RULES.path)
