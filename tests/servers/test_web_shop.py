"""The shop's data and pages: the same everywhere, apart for each session, and never at a loss."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from agentgym_servers.web.sites.shop.data import ADMIN, CUSTOMER, logged_in_cookies
from agentgym_servers.web.sites.site import Request, Response
from shop_reader import ADMIN_HOST, BLOB, SHOP_HOST, Reader, blob_of, shop_session

PATHS = (
    "/", "/tea.html", "/catalogsearch/result/", "/checkout/cart/add/", "/checkout/cart/updatePost/",
    "/checkout/cart/couponPost/", "/checkout/placeOrder/", "/customer/account/loginPost/",
    "/customer/account/createpost/", "/customer/address/formPost/", "/wishlist/index/add/",
    "/review/product/post/id/1/", "/sales/order/view/order_id/1/", "/contact/index/post/",
    "/catalog/product_compare/add/", "/newsletter/manage/save/", "/rest/V1/orders",
    "/rest/default/V1/integration/admin/token", "/admin/", "/admin/sales/order/",
    "/admin/sales/order/addComment/order_id/1/", "/admin/catalog/product/save/id/1/",
    "/admin/customer/index/save/id/1/", "/admin/review/product/save/id/1/",
    "/admin/sales_rule/promo_quote/save/", "/admin/reports/report_sales/sales/",
)  # fmt: skip
FIELDS = (
    "q", "p", "product", "qty", "color", "price_to", "product_list_order", "sort", "dir", "status",
    "id", "item", "address", "shipping_method", "coupon_code", "login[username]", "email",
    "password", "password_confirmation", "firstname", "lastname", "name", "comment", "rating",
    "title", "nickname", "detail", "from", "to", "period_type", "product[price]", "product[name]",
    "product[quantity_and_stock_status][qty]", "status_id", "discount_amount", "simple_action",
    "searchCriteria[pageSize]", "username",
)  # fmt: skip
JUNK = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(), max_size=10),
    st.sampled_from(("-1", "9" * 30, "1e9", "%", "' OR 1=1 --", "\ud800", "\0", "1", "NaN", "٣")),
)


def test_the_same_seed_makes_the_same_bytes_and_another_seed_does_not():
    assert blob_of(0) == BLOB
    assert blob_of(1) != BLOB


def test_another_process_makes_the_same_bytes():
    program = (
        "import hashlib; from agentgym_servers.web.sites.pages import freeze;"
        "from agentgym_servers.web.sites.shop.shop import SHOP;"
        "print(hashlib.sha256(freeze(SHOP.make_database(0))).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True
    )
    assert told.stdout.strip() == hashlib.sha256(BLOB).hexdigest()


def test_the_data_is_as_large_as_a_small_shop_and_fits_a_small_blob():
    reader = Reader(shop_session())
    counts = {
        table: reader.rows(f"SELECT count(*) FROM {table}")[0][0]
        for table in ("category", "product", "customer", "purchase", "review")
    }
    assert counts == {
        "category": 12, "product": 204, "customer": 40, "purchase": 260, "review": 600
    }  # fmt: skip
    assert reader.rows("SELECT count(DISTINCT price), count(DISTINCT name) FROM product") == [
        (204, 204)
    ]
    assert len(BLOB) < 600_000


def crawl(reader, most):
    """The addresses of the shop that were followed, each of which leads to a page."""
    todo, seen = ["__SHOPPING__/", "__SHOPPING_ADMIN__"], set()
    while todo and len(seen) < most:
        url = todo.pop()
        if url in seen or "logout" in url:
            continue
        seen.add(url)
        reader.goto(url)
        assert reader.status == 200, url
        todo.extend(reader.links())
    return seen


def test_links_lead_to_pages():
    assert len(crawl(Reader(shop_session()), 250)) == 250


@pytest.mark.slow
def test_every_link_that_can_be_reached_leads_to_a_page():
    seen = crawl(Reader(shop_session()), 10**6)
    assert len(seen) > 1400
    assert sum("admin.test" in url for url in seen) > 900


def test_every_field_has_a_label_of_its_own_and_every_form_an_address():
    reader = Reader(shop_session())
    product = reader.rows("SELECT slug FROM product WHERE sizes <> ''")[0][0]
    for url in (
        "__SHOPPING__/", "__SHOPPING__/tea.html", f"__SHOPPING__/{product}.html",
        "__SHOPPING__/contact/", "__SHOPPING__/customer/address/new/",
        "__SHOPPING__/newsletter/manage/", "__SHOPPING__/customer/account/create/",
        "__SHOPPING_ADMIN__/sales/order/", "__SHOPPING_ADMIN__/catalog/product/edit/id/3/",
        "__SHOPPING_ADMIN__/sales_rule/promo_quote/new/",
        "__SHOPPING_ADMIN__/sales/order/view/order_id/255/",
    ):  # fmt: skip
        page = reader.goto(url).page
        named = [label.get("for") for label in page.iter("label")]
        assert not page.xpath("//label//input"), url
        assert len(page.xpath("//@id")) == len(set(page.xpath("//@id"))), url
        for field in page.xpath("//select | //textarea | //input[not(@type = 'hidden')]"):
            assert named.count(field.get("id")) == 1, (url, field.get("id"))
        assert all(form.get("action") for form in page.iter("form"))
        assert not page.xpath("//table[not(tbody)] | //script"), url
        assert len(page.xpath("//h1")) == 1, url
        etree.HTML(reader.body, etree.HTMLParser(recover=False))


def test_sorting_filter_and_pages_of_a_category_agree_with_its_products():
    reader = Reader(shop_session()).goto("__SHOPPING__/shoes.html")
    reader.choose(reader.field("Sort By"), "Price")
    reader.choose(reader.field("Direction"), "Descending")
    reader.click("button", "Apply")
    names = reader.page.xpath("//ol[@class='products']/li/p[1]/a/text()")
    reader.click("link", "2")
    names += reader.page.xpath("//ol[@class='products']/li/p[1]/a/text()")
    wanted = reader.rows("SELECT name FROM product WHERE category = 8 ORDER BY price DESC")
    assert [(name,) for name in names] == wanted
    reader.goto("/shoes.html?price_from=50&price_to=99.99")
    found = reader.rows(
        "SELECT count(*) FROM product WHERE category = 8 AND price BETWEEN 5000 AND 9999"
    )
    assert f"{found[0][0]} Items" in reader.body


def test_search_finds_all_words_in_any_order_and_counts_its_terms():
    reader = Reader(shop_session()).goto("__SHOPPING__/catalogsearch/result/?q=Tea+Herbal")
    found = reader.rows("SELECT count(*) FROM product WHERE name LIKE '%Herbal Tea%'")[0][0]
    assert found and f"{found} Items" in reader.body
    assert reader.rows("SELECT results, uses FROM term WHERE text = 'tea herbal'") == [(found, 1)]
    assert "We can't find products" in reader.goto("/catalogsearch/result/?q=%25").body


def test_what_a_page_shows_is_escaped():
    words = "<b>&\"'"
    reader = Reader(shop_session()).goto("__SHOPPING__/").follow(())
    reader.field("Search").set("value", words)
    reader.click("button", "Search")
    assert "<b>" not in reader.body
    assert reader.field("Search").get("value") == words


def test_thirty_sessions_at_the_same_addresses_see_only_their_own_carts():
    query = "SELECT slug, quantity FROM product WHERE colours = '' ORDER BY quantity DESC"
    slug, stock = Reader(shop_session()).rows(query)[0]

    def fill_cart(index):
        reader = Reader(shop_session()).goto(f"__SHOPPING__/{slug}.html")
        reader.field("Qty").set("value", str(1 + index % stock))
        reader.click("button", "Add to Cart").click("link", "My Cart")
        return reader.page.xpath("//table[contains(@class, 'cart')]//input/@value")

    with ThreadPoolExecutor(8) as pool:
        carts = list(pool.map(fill_cart, range(30)))
    assert carts == [[str(1 + index % stock)] for index in range(30)]
    assert stock > 30


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("__SHOPPING__/no-such-thing.html", 404),
        ("__SHOPPING__/sales/order/view/order_id/1/", 404),
        ("__SHOPPING__/sales/order/view/order_id/x/", 404),
        ("__SHOPPING__/sales/order/view/order_id/99999999999999999999/", 404),
        ("__SHOPPING__/nowhere/at/all", 404),
        ("__SHOPPING__/checkout/cart/add/", 404),
        ("__SHOPPING_ADMIN__/catalog/product/edit/id/0/", 404),
        ("__SHOPPING_ADMIN__/nowhere", 404),
    ],
)
def test_what_is_not_there_is_said_to_be_missing(url, status):
    assert Reader(shop_session()).goto(url).status == status


def test_the_admins_pages_are_on_its_own_host_only():
    assert Reader(shop_session()).goto("http://shop.test/admin/sales/order/").status == 404
    assert Reader(shop_session()).goto("http://admin.test/checkout/cart/").status == 404


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(("GET", "POST", "HEAD", "PUT", "")),
    host=st.sampled_from((SHOP_HOST, ADMIN_HOST)),
    path=st.one_of(st.sampled_from(PATHS), st.text(max_size=30).map("/".__add__)),
    fields=st.dictionaries(st.sampled_from(FIELDS), st.lists(JUNK, max_size=2), max_size=9),
    cookie=st.one_of(st.none(), JUNK),
)
def test_whatever_a_client_sends_is_answered(method, host, path, fields, cookie):
    cookies = {**logged_in_cookies(CUSTOMER), **logged_in_cookies(ADMIN)}
    if cookie is not None:
        cookies = {"session": cookie, "admin": cookie}
    session = shop_session()
    answer = session.answer(Request(method, host, path, fields, fields, cookies))
    assert isinstance(answer, Response)
    assert answer.status in (200, 302, 400, 401, 404)
    answer.body.encode()
    session.close()


def test_an_address_of_a_megabyte_is_answered():
    long = "a" * 1_000_000
    for path in (f"/{long}.html", f"/sales/order/view/order_id/{'9' * 1_000_000}/", f"/{long}/"):
        assert Reader(shop_session()).goto(f"__SHOPPING__{path}").status == 404
    assert Reader(shop_session()).goto(f"__SHOPPING__/catalogsearch/result/?q={long}").status == 200


def test_a_form_of_a_megabyte_is_cut_to_size():
    reader = Reader(shop_session())
    dice = random.Random(0)
    long = "".join(dice.choice("abc <&é") for _ in range(1_000_000))
    form = {"name": [long], "email": ["a@b.c"], "comment": [long]}
    assert reader.goto("__SHOPPING__/contact/index/post/", form).status == 200
    ((size,),) = reader.rows("SELECT max(length(text)) FROM message")
    assert 3000 < size <= 4000
