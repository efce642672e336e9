"""The sites at addresses of their own: for programs without a proxy, with links among them."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest
import requests
from listener_client import ask
from lxml import html

from agentgym_env.errors import BadRequest
from agentgym_servers.web.evaluation.verified import har_entries
from agentgym_servers.web.front.front import Front
from agentgym_servers.web.front.origins import ANY_PORTS, open_origins
from agentgym_servers.web.front.session_site import Links
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.web.sites.site import ACCOUNTS, HOSTS
from agentgym_servers.web.sites.site_map import real_sites

LINKS = Links({"shop.test": "http://127.0.0.2:7770", "admin.test": "http://127.0.0.3:7780"})


@pytest.fixture
def front():
    with Front() as front:
        yield front


@pytest.fixture
def origins(front):
    session = embedded(0).session()
    yield open_origins(front, session, record=True)
    front.close()
    session.close()


@pytest.fixture
def client():
    with requests.Session() as client:
        client.trust_env = False
        yield client


def submit(client, page, button, **values):
    """Fill a page's form by its labels, and send it."""
    root = html.fromstring(page.text)
    (pressed,) = [one for one in root.iter("button") if one.text_content().strip() == button]
    form = next(pressed.iterancestors("form"))
    for label, text in values.items():
        (found,) = [one for one in root.iter("label") if one.text_content().strip() == label]
        root.get_element_by_id(found.get("for")).set("value", text)
    fields = {one.name: one.value for one in form.inputs if one.name}
    url = urljoin(page.url, form.get("action"))
    if form.method == "POST":
        return client.post(url, fields)
    return client.get(url, params=fields)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('<a href="http://shop.test/p/4">', '<a href="http://127.0.0.2:7770/p/4">'),
        ("http://shop.test", "http://127.0.0.2:7770"),
        ("See http://shop.test.", "See http://127.0.0.2:7770."),
        ("http://admin.test/admin/", "http://127.0.0.3:7780/admin/"),
        ("http://shop.test.example.com/", "http://shop.test.example.com/"),
        ("http://shop.test:81/", "http://shop.test:81/"),
        ("http://shop.test@example.com/", "http://shop.test@example.com/"),
        ("http://shop.tests/", "http://shop.tests/"),
        ("http://shopAtest/", "http://shopAtest/"),
        ("http://wiki.test/", "http://wiki.test/"),
    ],
)
def test_links_lead_to_where_sites_are_served(text, shown):
    assert LINKS.shown(text) == shown
    assert Links({}).shown(text) == text


def test_every_site_stands_at_an_address_of_its_own(origins, client):
    assert list(origins.sites.bases) == list(HOSTS)
    assert re.fullmatch(r"http://127\.0\.0\.3:\d+/admin", origins.sites.bases["shopping_admin"])
    for site, base in origins.sites.bases.items():
        assert base.startswith(origins.listeners[site].address)
        assert client.get(base).status_code == 200
    assert (
        real_sites({f"WA_{s.upper()}": b for s, b in origins.sites.bases.items()}) == origins.sites
    )


@pytest.mark.parametrize(
    ("site", "path", "labels", "button", "inside"),
    [
        ("shopping", "/customer/account/login/", ("Email", "Password"), "Sign In", "Emma Lopez"),
        ("shopping_admin", "", ("Username", "Password"), "Sign in", "Dashboard"),
        ("reddit", "/login", ("Username", "Password"), "Log in", ACCOUNTS["reddit"].username),
        ("gitlab", "/users/sign_in", ("Username or email", "Password"), "Sign in", "byteblaze"),
    ],
)
def test_one_logs_in_through_the_forms(origins, client, site, path, labels, button, inside):
    base = origins.sites.bases[site]
    filled = dict(zip(labels, ACCOUNTS[site], strict=True))
    page = submit(client, client.get(base + path), button, **filled)
    assert page.url.startswith(base)
    assert inside in page.text
    assert inside in client.get(page.url).text


def test_the_homepages_links_lead_to_the_sites(origins, client):
    page = client.get(origins.sites.bases["homepage"])
    links = html.fromstring(page.text).xpath("//a/@href")
    outside = {link for link in links if link.startswith("http")}
    assert outside == {f"{b}/" for s, b in origins.sites.bases.items() if s != "homepage"}
    assert {client.get(link).status_code for link in outside} == {200}


def test_no_page_names_an_embedded_host_in_a_link(origins, client):
    for base in origins.sites.bases.values():
        page = client.get(base)
        for link in html.fromstring(page.text).xpath("//a/@href")[:15]:
            asked = client.get(urljoin(page.url, link))
            assert not re.search(r"http://\w+\.test", asked.text), asked.url


def test_redirects_stay_at_the_address(origins):
    account = ask(origins.listeners["shopping"], "/customer/account/")
    login = f"{origins.sites.bases['shopping']}/customer/account/login/"
    assert (account.status, account.headers["Location"]) == (302, login)


def test_the_shop_and_its_admin_share_their_data(origins, client):
    admin = origins.sites.bases["shopping_admin"]
    login = dict(zip(("Username", "Password"), ACCOUNTS["shopping_admin"], strict=True))
    submit(client, client.get(admin), "Sign in", **login)
    assert client.get(f"{admin}/sales/order/").status_code == 200


def test_an_origin_is_no_proxy_and_keeps_to_its_site(origins):
    listener = origins.listeners["shopping"]
    assert ask(listener, "http://shop.test/").status == 400
    assert ask(listener, f"{listener.address}/").status == 400
    assert ask(listener, "shop.test:443", "CONNECT").status == 403
    assert ask(listener, "/", headers={"Host": "admin.test"}).body == ask(listener, "/").body
    assert ask(listener, "/favicon.ico").status == 204


def test_the_rest_interface_is_open_only_where_it_is_asked_for(front, origins):
    assert ask(origins.listeners["shopping"], "/rest/V1/orders").status == 403
    session = embedded(0).session()
    bases = {"shopping": "http://127.0.0.9:0"}
    with_rest = open_origins(front, session, bases, rest=True)
    assert ask(with_rest.listeners["shopping"], "/rest/V1/orders").status == 200
    with_rest.close()
    session.close()
    with pytest.raises(ConnectionRefusedError):
        ask(with_rest.listeners["shopping"], "/")


def test_what_was_asked_is_remembered_under_the_addresses(origins):
    listener, base = origins.listeners["shopping"], origins.sites.bases["shopping"]
    ask(listener, "/customer/account/?a=1")
    (entry,) = har_entries(listener.exchanges)
    assert entry["request"]["url"] == f"{base}/customer/account/?a=1"
    assert entry["response"]["redirectURL"] == f"{base}/customer/account/login/"


@pytest.mark.parametrize(
    ("bases", "told"),
    [
        ({"shopping": "http://10.0.0.1:80"}, "10.0.0.1"),
        ({"shopping": "http://localhost:80"}, "localhost"),
        ({"shopping": "http://127.0.0.2"}, "such as http://127.0.0.2:0"),
        ({"shopping": "https://127.0.0.2:0"}, "https"),
        ({"shopping": "http://127.0.0.2:0/shop"}, "/shop"),
        ({"shopping": "http://127.0.0.2:x"}, "127.0.0.2:x"),
        ({"shopping_admin": "http://127.0.0.3:0"}, "such as http://127.0.0.3:0/admin"),
        ({"shopping": "nonsense"}, "nonsense"),
        ({"bakery": "http://127.0.0.2:0"}, "bakery"),
        (
            {"shopping": "http://127.0.0.2:0", "shopping_admin": "http://127.0.0.2:0/admin"},
            "share an address",
        ),
    ],
)
def test_addresses_that_cannot_be_are_told(front, bases, told):
    with pytest.raises(BadRequest, match=re.escape(told)):
        open_origins(front, embedded(0).session(), bases)


def test_an_address_that_is_taken_leaves_the_others_free(front, origins):
    taken = {"wikipedia": ANY_PORTS["wikipedia"], "map": origins.sites.bases["map"]}
    with pytest.raises(BadRequest, match="Nothing can listen at"):
        open_origins(front, embedded(0).session(), taken)
