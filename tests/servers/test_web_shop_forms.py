"""The shop's forms change what they should, for customers and in the admin."""

from __future__ import annotations

import json

import pytest

from agentgym_servers.web.sites.shop.data import (
    ADMIN_PASSWORD,
    CUSTOMER,
    CUSTOMER_PASSWORD,
    logged_in_cookies,
    money,
)
from agentgym_servers.web.tasks.scripts import Click, Fill, Goto, Select
from shop_reader import ADMIN_HOST, SHOP_HOST, Reader, shop_session

PLAIN = "SELECT id, name, slug, price, quantity FROM product WHERE colours = '' AND quantity > 9"


@pytest.fixture
def emma():
    return Reader(shop_session())


@pytest.fixture
def guest():
    return Reader(shop_session(), logged_in=False)


def product(reader, number=0):
    return reader.rows(PLAIN)[number]


def buy(reader, number=0, quantity=1):
    slug = product(reader, number)[2]
    return reader.follow(
        [
            Goto(f"__SHOPPING__/{slug}.html"),
            Fill("Qty", str(quantity)),
            Click("button", "Add to Cart"),
        ]
    )


def test_the_shops_login_form_lets_a_customer_in_and_nobody_else(guest):
    form = [Goto("__SHOPPING__/customer/account/login/"), Fill("Email", CUSTOMER)]
    guest.follow([*form, Fill("Password", "guess"), Click("button", "Sign In")])
    assert "sign-in was incorrect" in guest.body
    guest.follow([*form, Fill("Password", CUSTOMER_PASSWORD), Click("button", "Sign In")])
    assert guest.url == "http://shop.test/customer/account/"
    assert "Welcome, Emma Lopez!" in guest.body
    guest.click("link", "Sign Out").goto("__SHOPPING__/customer/account/")
    assert guest.url.endswith("/customer/account/login/")


def test_the_admins_login_form_lets_the_admin_in_and_nobody_else(guest):
    form = [Goto("__SHOPPING_ADMIN__"), Fill("Username", "admin")]
    guest.follow([*form, Fill("Password", "guess"), Click("button", "Sign in")])
    assert "sign-in was incorrect" in guest.body
    guest.follow([*form, Fill("Password", ADMIN_PASSWORD), Click("button", "Sign in")])
    assert guest.url == "http://admin.test/admin/dashboard/"
    guest.click("link", "Sign Out").goto("__SHOPPING_ADMIN__/sales/order/")
    assert "Welcome, please sign in" in guest.body


def test_a_customers_cookie_opens_no_page_of_the_admin(guest):
    (token,) = logged_in_cookies(CUSTOMER).values()
    guest.cookies[ADMIN_HOST] = {"admin": token, "session": token}
    assert guest.goto("__SHOPPING_ADMIN__/catalog/product/").url.endswith("/admin/")


def test_a_new_customer_can_register_add_an_address_and_buy(guest):
    guest.follow(
        [
            Goto("__SHOPPING__/customer/account/create/"),
            Fill("First Name", "Ada"),
            Fill("Last Name", "Quist"),
            Fill("Email", "ada@example.com"),
            Fill("Password", "long enough"),
            Fill("Confirm Password", "long enough"),
            Click("button", "Create an Account"),
        ]
    )
    assert "Thank you for registering" in guest.body
    buy(guest).follow([Goto("__SHOPPING__/checkout/"), Click("link", "add an address")])
    guest.follow(
        [
            *(Fill(label, "1 Road") for label in ("Name", "Phone Number", "Street Address")),
            *(Fill(label, "Here") for label in ("City", "State/Province", "Zip/Postal Code")),
            Click("checkbox", "Use as my default shipping address"),
            Click("button", "Save Address"),
            Goto("__SHOPPING__/checkout/"),
            Click("button", "Place Order"),
        ]
    )
    assert "Thank you for your purchase!" in guest.body
    assert guest.rows("SELECT count(*) FROM purchase WHERE customer = 41") == [(1,)]


def test_a_guests_cart_is_there_after_the_login(guest):
    buy(guest)
    assert guest.rows("SELECT owner FROM basket_line")[0][0].startswith("guest")
    guest.follow(
        [
            Goto("__SHOPPING__/customer/account/login/"),
            Fill("Email", CUSTOMER),
            Fill("Password", CUSTOMER_PASSWORD),
            Click("button", "Sign In"),
        ]
    )
    assert guest.rows("SELECT owner FROM basket_line") == [("customer 1",)]


def test_a_cart_can_be_changed_and_emptied(emma):
    number, name, *_ = product(emma)
    buy(emma, quantity=2)
    assert f"You added {name} to your shopping cart." in emma.body
    emma.click("link", "My Cart").follow(
        [Fill(f"Qty of {name}", "5"), Click("button", "Update Shopping Cart")]
    )
    assert emma.rows("SELECT product, quantity FROM basket_line") == [(number, 5)]
    emma.click("button", f"Remove {name}")
    assert "You have no items" in emma.body


def test_no_more_can_be_bought_than_there_is(emma):
    stock = product(emma)[4]
    buy(emma, quantity=stock + 1)
    assert "qty is not available" in emma.body
    assert emma.rows("SELECT * FROM basket_line") == []


def test_options_have_to_be_chosen(emma):
    slug = emma.rows("SELECT slug FROM product WHERE sizes <> '' AND quantity > 0")[0][0]
    emma.goto(f"__SHOPPING__/{slug}.html").click("button", "Add to Cart")
    assert "You need to choose options" in emma.body
    emma.follow([Select("Color", "Navy"), Select("Size", "L"), Click("button", "Add to Cart")])
    assert emma.rows("SELECT options FROM basket_line") == [("Color: Navy, Size: L",)]


def test_an_order_takes_from_the_stock_and_a_cancel_gives_back(emma):
    number, _, _, price, stock = product(emma)
    buy(emma, quantity=3).follow(
        [Goto("__SHOPPING__/checkout/"), Select("Shipping Method", "Best Way $12.00")]
    )
    emma.click("button", "Place Order")
    query = f"SELECT quantity FROM product WHERE id = {number}"
    assert emma.rows(query) == [(stock - 3,)]
    assert emma.rows("SELECT total, status FROM purchase WHERE id = 261") == [
        (3 * price + 1200, "Pending")
    ]
    emma.click("link", "000000261").click("button", "Cancel Order")
    assert emma.rows(query) == [(stock,)]
    assert "Canceled" in emma.body


def test_a_coupon_of_the_admin_lowers_the_price_in_the_shop(emma):
    emma.follow(
        [
            Goto("__SHOPPING_ADMIN__/sales_rule/promo_quote/new/"),
            Fill("Rule Name", "Half"),
            Fill("Coupon Code", "HALF"),
            Fill("Discount Amount", "50"),
            Click("button", "Save Rule"),
        ]
    )
    price = product(emma)[3]
    buy(emma).click("link", "My Cart")
    emma.follow([Fill("Enter discount code", "SUMMER22"), Click("button", "Apply Discount")])
    assert "is not valid" in emma.body
    emma.follow([Fill("Enter discount code", "HALF"), Click("button", "Apply Discount")])
    assert money(price // 2) in emma.body
    emma.goto("__SHOPPING__/checkout/").click("button", "Place Order")
    assert emma.rows("SELECT coupon, discount FROM purchase WHERE id = 261") == [
        ("HALF", price // 2)
    ]


def test_a_reorder_fills_the_cart_as_it_was(emma):
    (order,) = emma.rows(
        "SELECT o.id FROM purchase o JOIN line l ON l.purchase = o.id JOIN product p"
        " ON p.id = l.product WHERE o.customer = 1 GROUP BY o.id HAVING min(p.quantity) > 9"
    )[0]
    emma.goto(f"__SHOPPING__/sales/order/view/order_id/{order}/").click("button", "Reorder")
    lines = f"SELECT product, options, quantity FROM line WHERE purchase = {order}"
    assert emma.rows("SELECT product, options, quantity FROM basket_line") == emma.rows(lines)


def test_nobody_sees_or_changes_what_is_another_customers(emma):
    (order,) = emma.rows("SELECT id FROM purchase WHERE customer = 2 AND status = 'Pending'")[0]
    for act in ("cancel", "reorder"):
        assert emma.goto(f"__SHOPPING__/sales/order/{act}/order_id/{order}/", {}).status == 404
    assert emma.goto("__SHOPPING__/customer/address/edit/id/2/").status == 404
    assert emma.goto("__SHOPPING__/customer/address/formPost/id/2/", {}).status == 404


def test_the_newsletter_the_wish_list_and_the_comparison_remember(emma):
    emma.follow(
        [
            Goto("__SHOPPING__/newsletter/manage/"),
            Click("checkbox", "General Subscription"),
            Click("button", "Save"),
        ]
    )
    assert emma.rows("SELECT subscribed FROM customer WHERE id = 1") == [(1,)]
    _, name, slug, *_ = product(emma)
    emma.goto(f"__SHOPPING__/{slug}.html").click("button", "Add to Wish List")
    emma.click("button", f"Remove {name}")
    assert "You have no items in your wish list" in emma.body
    emma.goto(f"__SHOPPING__/{slug}.html").click("button", "Add to Compare")
    emma.click("link", "Compare Products")
    assert slug in emma.body
    emma.click("button", "Clear All")
    assert "You have no items to compare" in emma.body


def test_a_review_appears_in_the_shop_once_the_admin_approves_it(emma):
    _, _, slug, *_ = product(emma)
    emma.follow(
        [
            Goto(f"__SHOPPING__/{slug}.html"),
            Select("Rating", "4 stars"),
            Fill("Nickname", "Quill"),
            Fill("Summary", "Nearly"),
            Fill("Review", "Nearly perfect."),
            Click("button", "Submit Review"),
        ]
    )
    assert "for moderation" in emma.body and "Nearly perfect." not in emma.body
    emma.follow(
        [
            Goto("__SHOPPING_ADMIN__/review/product/?nickname=Quill"),
            Click("link", "601"),
            Select("Status", "Approved"),
            Click("button", "Save Review"),
        ]
    )
    assert "Nearly perfect." in emma.goto(f"__SHOPPING__/{slug}.html").body
    emma.goto("__SHOPPING_ADMIN__/review/product/edit/id/601/").click("button", "Delete Review")
    assert "Nearly perfect." not in emma.goto(f"__SHOPPING__/{slug}.html").body


def test_what_the_admin_changes_of_a_product_shows_in_the_shop(emma):
    number, name, slug, *_ = product(emma)
    form = Goto(f"__SHOPPING_ADMIN__/catalog/product/edit/id/{number}/")
    emma.follow([form, Fill("Price", "1.23"), Fill("Quantity", "0"), Click("button", "Save")])
    emma.goto(f"__SHOPPING__/{slug}.html")
    assert "$1.23" in emma.body and "Out of stock" in emma.body
    emma.follow([form, Fill("Price", "cheap"), Click("button", "Save")])
    assert "Please enter a name, a price and a quantity." in emma.body
    emma.follow([form, Select("Enable Product", "No"), Click("button", "Save")])
    assert emma.goto(f"__SHOPPING__/{slug}.html").status == 404
    emma.follow([Goto("__SHOPPING__/"), Fill("Search", name), Click("button", "Search")])
    assert f"http://shop.test/{slug}.html" not in emma.links()


def test_the_admin_ships_comments_and_edits_customers(emma):
    (order,) = emma.rows("SELECT id FROM purchase WHERE status = 'Pending'")[0]
    emma.follow(
        [
            Goto(f"__SHOPPING_ADMIN__/sales/order/view/order_id/{order}/"),
            Fill("Comment", "On its way soon."),
            Click("button", "Submit Comment"),
            Fill("Tracking Number", "TN1"),
            Click("button", "Ship"),
        ]
    )
    assert emma.page.get_element_by_id("order_status").text == "Complete"
    assert "On its way soon." in emma.body and "TN1" in emma.body
    emma.follow(
        [
            Goto("__SHOPPING_ADMIN__/customer/index/edit/id/7/"),
            Select("Group", "Retailer"),
            Fill("First Name", "Renamed"),
            Click("button", "Save Customer"),
        ]
    )
    assert emma.rows("SELECT first, class FROM customer WHERE id = 7") == [("Renamed", "Retailer")]


def test_a_table_of_the_admin_sorts_money_as_numbers(emma):
    emma.goto("__SHOPPING_ADMIN__/sales/order/?sort=Grand+Total&dir=desc")
    totals = [float(text[1:]) for text in emma.page.xpath("//tbody/tr/td[4]/text()")]
    assert totals == sorted(totals, reverse=True) and len(totals) == 20
    assert round(100 * totals[0]) == emma.rows("SELECT max(total) FROM purchase")[0][0]


def test_the_rest_interface_gives_what_webarenas_helpers_read(emma):
    path = "__SHOPPING__/rest/default/V1/integration/admin/token"
    account = {"username": ["admin"], "password": [ADMIN_PASSWORD]}
    assert len(json.loads(emma.goto(path, account).body)) == 24
    assert emma.goto(path, {}).status == 401
    buy(emma).goto("__SHOPPING__/checkout/").click("button", "Place Order")
    field, direction = (f"searchCriteria[sortOrders][0][{word}]" for word in ("field", "direction"))
    emma.goto(
        f"__SHOPPING__/rest/V1/orders?{field}=created_at&{direction}=DESC&searchCriteria[pageSize]=1"
    )
    (order,) = json.loads(emma.body)["items"]
    assert order["increment_id"] == "000000261"
    assert emma.goto("__SHOPPING__/rest/V1/products/none/reviews").body == "[]"


def test_logged_in_cookies_are_rows_of_the_database(emma):
    for account in (CUSTOMER, "admin"):
        (token,) = logged_in_cookies(account).values()
        assert emma.rows("SELECT 1 FROM visit WHERE token = ?", token) == [(1,)]
    emma.cookies[SHOP_HOST] = {"session": "nobody"}
    assert "Sign In" in emma.goto("__SHOPPING__/").body
