"""A session's sites through its listener: who is let to what, and what a browser is answered."""

from __future__ import annotations

import json

import msgspec
import pytest
import requests
from listener_client import ask, through
from web_shop import TinySession

from agentgym_servers.web.evaluation.verified import har_entries
from agentgym_servers.web.front.forward_gate import session_gate
from agentgym_servers.web.front.front import Front
from agentgym_servers.web.sites.shop.data import ADMIN, ADMIN_PASSWORD, CUSTOMER, logged_in_cookies
from agentgym_servers.web.sites.shop.shop import SHOP as WHOLE_SHOP
from agentgym_servers.web.sites.site import Response
from shop_reader import ADMIN_HOST, SHOP_HOST, shop_session

TINY = "http://tiny.test"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Fixed:
    """A site that always gives the same answer."""

    def __init__(self, response):
        self.response = response

    def answer(self, database, request):
        return self.response


@pytest.fixture
def front():
    with Front() as front:
        yield front


@pytest.fixture
def tiny(front):
    return front.open_listener(session_gate(TinySession(), ["tiny.test"], record=True))


@pytest.fixture
def shop(front):
    return front.open_listener(session_gate(shop_session(), [SHOP_HOST, ADMIN_HOST], record=True))


def gives(front, response):
    """A listener to a site that always gives this."""
    site = Fixed(response)
    return front.open_listener(session_gate(TinySession(site), ["tiny.test"]))


def test_a_page_comes_by_the_host_in_its_address_whatever_the_host_header_says(tiny):
    answer = ask(tiny, f"{TINY}/cart", headers={"Host": "example.com"})
    assert answer.status == 200
    assert b"<title>cart</title>" in answer.body
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert ask(tiny, "HTTP://TINY.test:80/cart").body == answer.body
    assert b"<title>home</title>" in ask(tiny, TINY).body


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("http://example.com/", 403),
        ("http://127.0.0.1/", 403),
        ("http://[::1]/", 403),
        ("http://tiny.test./", 403),
        ("http://tiny.test.example.com/", 403),
        ("http://tiny.test:81/", 403),
        ("https://tiny.test/", 403),
        ("ftp://tiny.test/", 403),
        ("file:///etc/passwd", 403),
        ("http://tiny.test@example.com/", 400),
        ("http://example.com@tiny.test/", 400),
        ("http://tiny.test:port/", 400),
        ("http://tiny.test:99999/", 400),
        ("http:///", 400),
        ("/cart", 400),
        ("*", 400),
        ("tiny.test", 400),
    ],
)
def test_everything_but_the_sessions_own_hosts_is_out_of_bounds(tiny, url, status):
    assert ask(tiny, url).status == status
    assert tiny.exchanges == ()


def test_a_listeners_own_address_is_out_of_bounds_through_it(tiny):
    assert ask(tiny, f"{tiny.address}/cart").status == 403


@pytest.mark.parametrize("target", ["tiny.test:443", "tiny.test:80", "127.0.0.1:22", "nonsense"])
def test_connect_leads_nowhere(tiny, target):
    assert ask(tiny, target, "CONNECT").status == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_methods_that_no_page_uses_are_refused(tiny, method):
    assert ask(tiny, f"{TINY}/cart", method).status == 405


def test_a_form_arrives_with_all_its_values_blank_ones_too(tiny):
    body = "name=&tags=x&tags=z&note=two%0D%0Alines+and+%E2%82%AC&bad=%FF"
    answer = ask(tiny, f"{TINY}/echo?a=1&b=&a=2", "POST", body, FORM)
    sent = json.loads(answer.body)
    assert sent["method"] == "POST"
    assert sent["query"] == {"a": ["1", "2"], "b": [""]}
    note = "two\r\nlines and €"
    assert sent["form"] == {"name": [""], "tags": ["x", "z"], "note": [note], "bad": ["\ufffd"]}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="a"\r\n'),
        ("application/json", b"{}"),
        ("text/plain", b"a=1"),
        ("", b"a=1"),
    ],
)
def test_bodies_that_are_no_urlencoded_form_are_refused(tiny, kind, body):
    assert ask(tiny, f"{TINY}/echo", "POST", body, {"Content-Type": kind}).status == 415


def test_a_form_without_any_field_is_still_a_form(tiny):
    assert json.loads(ask(tiny, f"{TINY}/echo", "POST", b"", {}).body)["form"] == {}


def test_a_form_has_a_bounded_number_of_fields(tiny):
    fields = "&".join(["a=1"] * 1000)
    assert ask(tiny, f"{TINY}/echo", "POST", fields, FORM).status == 200
    assert ask(tiny, f"{TINY}/echo", "POST", f"{fields}&a=1", FORM).status == 400
    assert ask(tiny, f"{TINY}/echo?{fields}&a=1").status == 400


def test_cookies_are_set_sent_and_taken_away(tiny):
    answer = ask(tiny, f"{TINY}/login", "POST", "user=ann", FORM)
    assert answer.headers["Set-Cookie"] == "user=ann; Path=/; HttpOnly; SameSite=Lax"
    assert b"You are ann." in ask(tiny, f"{TINY}/me", headers={"Cookie": "x=1; user=ann; y"}).body
    gone = ask(tiny, f"{TINY}/logout").headers["Set-Cookie"]
    assert gone == "user=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
    with through(tiny) as client:
        assert "You are bob." in client.post(f"{TINY}/login", {"user": "bob"}).text
        assert "You are nobody." in client.get(f"{TINY}/logout").text


def test_redirects_name_a_whole_address(tiny):
    post = ask(tiny, f"{TINY}/cart/add", "POST", "product=Lamp", FORM)
    assert (post.status, post.headers["Location"]) == (302, f"{TINY}/cart")
    assert ask(tiny, f"{TINY}/logout").headers["Location"] == f"{TINY}/me"
    assert ask(tiny, f"{TINY}/old").headers["Location"] == f"{TINY}/cart?from=old#end"


def test_a_redirect_out_of_bounds_is_refused_at_the_next_request(tiny):
    assert ask(tiny, f"{TINY}/away").headers["Location"] == "http://example.com/"
    with through(tiny) as client:
        last = client.get(f"{TINY}/away")
    assert (last.status_code, last.url) == (403, "http://example.com/")


def test_only_pages_that_were_asked_for_are_not_to_be_stored(tiny):
    assert ask(tiny, f"{TINY}/cart").headers["Cache-Control"] == "no-store"
    assert ask(tiny, f"{TINY}/echo", "POST", "a=1", FORM).headers["Cache-Control"] is None


def test_head_is_answered_like_get_without_the_body(tiny):
    get, head = ask(tiny, f"{TINY}/cart"), ask(tiny, f"{TINY}/cart", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers.items() == get.headers.items()


def test_a_browsers_own_wish_for_an_icon_does_not_trouble_the_site(tiny):
    assert ask(tiny, f"{TINY}/favicon.ico").status == 204
    assert ask(tiny, "http://example.com/favicon.ico").status == 403
    assert tiny.exchanges == ()


def test_odd_text_in_a_redirect_is_encoded_and_cannot_add_headers(front):
    listener = gives(front, Response(status=302, location="/q?a=ü b\r\nSet-Cookie: x=1"))
    answer = ask(listener, f"{TINY}/")
    assert answer.headers["Set-Cookie"] is None
    assert answer.headers["Location"].startswith(f"{TINY}/q?a=%C3%BC%20b")


@pytest.mark.parametrize(
    "response",
    [
        Response(cookies={"a": "1\r\nX: y"}),
        Response(cookies={"a": "€"}),
        Response("\ud800"),
        None,
    ],
)
def test_a_site_that_fails_costs_one_answer_and_not_the_listener(front, response, caplog):
    listener = gives(front, response)
    assert [ask(listener, f"{TINY}/").status for _ in range(2)] == [500, 500]
    assert "no answer to GET http://tiny.test/" in caplog.text


@pytest.mark.parametrize(
    "path", ["/rest/V1/orders", "/%72est/V1/orders", "/rest/V1/orders/", "/rest"]
)
def test_an_agent_cannot_ask_the_rest_interface(shop, path):
    for host in (SHOP_HOST, ADMIN_HOST):
        assert ask(shop, f"http://{host}{path}").status == 403
    assert ask(shop, f"http://{SHOP_HOST}//rest/V1/orders").status == 404


def test_webarenas_evaluators_ask_the_rest_interface_with_a_token(front):
    listener = front.open_listener(session_gate(shop_session(), [SHOP_HOST], rest=True))
    base = f"http://{SHOP_HOST}"
    with through(listener) as client:
        # As webarena.evaluation_harness.helper_functions does it.
        token = client.post(
            url=f"{base}/rest/default/V1/integration/admin/token",
            headers={"content-type": "application/json"},
            data=json.dumps({"username": ADMIN, "password": ADMIN_PASSWORD}),
        ).json()
        header = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        params = {
            "searchCriteria[sortOrders][0][field]": "created_at",
            "searchCriteria[sortOrders][0][direction]": "DESC",
            "searchCriteria[pageSize]": "1",
        }
        orders = client.get(f"{base}/rest/V1/orders", params=params, headers=header).json()
        assert len(orders["items"]) == 1
        wrong = {"username": ADMIN, "password": "guess"}
        assert client.post(f"{base}/rest/V1/integration/admin/token", json=wrong).status_code == 401
        for body in ("[]", "{", ""):
            token_url = f"{base}/rest/V1/integration/admin/token"
            assert client.post(token_url, data=body, headers=header).status_code == 400
        with_json = client.post(f"{base}/customer/account/loginPost/", json=wrong)
        assert with_json.status_code == 415


def test_reviews_are_asked_by_sku(front):
    session = shop_session()
    listener = front.open_listener(session_gate(session, [SHOP_HOST], rest=True))
    database = session.database(WHOLE_SHOP)
    sku = database.execute("SELECT sku FROM product").fetchone()["sku"]
    answer = ask(listener, f"http://{SHOP_HOST}/rest/V1/products/{sku}/reviews")
    assert answer.headers["Content-Type"] == "application/json"
    assert isinstance(json.loads(answer.body), list)


def test_the_shop_knows_who_is_logged_in_by_the_cookie(shop):
    cookie = "; ".join(f"{name}={value}" for name, value in logged_in_cookies(CUSTOMER).items())
    answer = ask(shop, f"http://{SHOP_HOST}/customer/account/", headers={"Cookie": cookie})
    assert b"Emma Lopez" in answer.body


def test_a_hundred_listeners_at_the_same_addresses_see_their_own_carts_only(front):
    listeners = [
        front.open_listener(session_gate(TinySession(), ["tiny.test"])) for _ in range(100)
    ]
    for number, listener in enumerate(listeners):
        ask(listener, f"{TINY}/cart/add", "POST", f"product=Lamp+{number}.", FORM)
    for number, listener in enumerate(listeners):
        page = ask(listener, f"{TINY}/cart").body.decode()
        assert page.count("Lamp") == 1
        assert f"Lamp {number}." in page


def test_a_listener_has_a_port_of_its_own_on_loopback(front):
    addresses = {
        front.open_listener(session_gate(TinySession(), ["tiny.test"])).address for _ in "ab"
    }
    assert len(addresses) == 2
    assert all(address.startswith("http://127.0.0.1:") for address in addresses)


def test_what_was_asked_is_remembered_for_an_archive(tiny):
    ask(
        tiny,
        f"{TINY}/cart/add?from=a+b",
        "POST",
        "product=Lamp&n=",
        {**FORM, "Referer": f"{TINY}/"},
    )
    ask(tiny, f"{TINY}/me", headers={"Cookie": "user=ann"})
    ask(tiny, f"{TINY}/me", "HEAD")
    added, me = har_entries(tiny.exchanges)
    assert (added["request"]["method"], added["request"]["url"]) == (
        "POST",
        f"{TINY}/cart/add?from=a+b",
    )
    assert added["request"]["postData"]["text"] == "product=Lamp&n="
    assert {"name": "Referer", "value": f"{TINY}/"} in added["request"]["headers"]
    assert (added["response"]["status"], added["response"]["redirectURL"]) == (302, f"{TINY}/cart")
    assert me["request"]["cookies"] == [{"name": "user", "value": "ann"}]
    assert "You are ann." in me["response"]["content"]["text"]


def test_nothing_is_remembered_unless_it_is_asked_for(front):
    listener = front.open_listener(session_gate(TinySession(), ["tiny.test"]))
    ask(listener, f"{TINY}/cart")
    assert listener.exchanges == ()


def test_a_page_of_bytes_is_as_long_as_it_says(front):
    listener = gives(front, Response("ä€" * 40_000))
    with through(listener) as client:
        answer = client.get(f"{TINY}/")
    assert answer.text == "ä€" * 40_000
    assert answer.headers["Content-Length"] == "200000"


def test_a_path_is_decoded_once(front, tiny):
    assert b"Nothing is at a%20b" in ask(tiny, f"{TINY}/a%2520b").body
    assert msgspec.structs.asdict(tiny.exchanges[0].request)["path"] == "/a%20b"


def test_a_browsers_requests_of_other_schemes_do_not_pass(tiny):
    with through(tiny) as client, pytest.raises(requests.exceptions.ProxyError):
        client.get("https://tiny.test/")
