"""A reader of the shop's pages: finds what a page offers by its name, and sends its forms."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from lxml import html

from agentgym_servers.web.sites.pages import freeze
from agentgym_servers.web.sites.shop.data import ADMIN, CUSTOMER, logged_in_cookies
from agentgym_servers.web.sites.shop.shop import SHOP
from agentgym_servers.web.sites.site import HOSTS, Request, SiteSession, host_of
from agentgym_servers.web.tasks.scripts import Click, Fill, Goto, Select, Stop

PLACES = {"__SHOPPING_ADMIN__": HOSTS["shopping_admin"], "__SHOPPING__": HOSTS["shopping"]}
SHOP_HOST, ADMIN_HOST = host_of("shopping"), host_of("shopping_admin")


class ShopSession(SiteSession):
    """A session that is closed when nobody holds it any more."""

    def __del__(self):
        self.close()


def blob_of(seed):
    with closing(SHOP.make_database(seed)) as database:
        return freeze(database)


BLOB = blob_of(0)


def shop_session():
    return ShopSession({SHOP_HOST: SHOP, ADMIN_HOST: SHOP}, {SHOP: BLOB})


def placed(url):
    for name, address in PLACES.items():
        url = url.replace(name, address)
    return url


def text_of(element):
    return " ".join(element.text_content().split())


class Reader:
    """One page at a time, with its form's fields as they were filled in."""

    def __init__(self, session, *, logged_in=True):
        self.session = session
        self.cookies = defaultdict(dict)
        if logged_in:
            self.cookies[SHOP_HOST] = logged_in_cookies(CUSTOMER)
            self.cookies[ADMIN_HOST] = logged_in_cookies(ADMIN)
        self.url, self.status, self.page, self.body, self.stopped = "", 0, None, "", None

    def goto(self, url, form=None):
        url = urljoin(self.url, placed(url))
        for _ in range(6):
            parts = urlsplit(url)
            response = self.session.answer(
                Request(
                    "GET" if form is None else "POST",
                    parts.netloc,
                    parts.path or "/",
                    parse_qs(parts.query, keep_blank_values=True),
                    form or {},
                    dict(self.cookies[parts.netloc]),
                )
            )
            for name, value in response.cookies.items():
                self.cookies[parts.netloc].pop(name, None)
                if value is not None:
                    self.cookies[parts.netloc][name] = value
            if response.location is None:
                break
            url, form = urljoin(url, response.location), None
        self.url, self.status, self.body = url, response.status, response.body
        self.page = html.fromstring(self.body) if "html" in response.content_type else None
        return self

    def follow(self, script):
        for step in script:
            match step:
                case Goto(url):
                    self.goto(url)
                case Click(role, name):
                    self.click(role, name)
                case Fill(label, text):
                    field = self.field(label)
                    if field.tag == "textarea":
                        field.text = text
                    else:
                        field.set("value", text)
                case Select(label, option):
                    self.choose(self.field(label), option)
                case Stop(answer):
                    self.stopped = answer
            assert self.status == 200, (step, self.status, self.url)
        return self

    def click(self, role, name):
        if role == "link":
            found = [a for a in self.page.iter("a") if text_of(a) == name]
            assert found, f"no link {name!r} on {self.url}"
            return self.goto(found[0].get("href"))
        if role == "button":
            found = [b for b in self.page.iter("button") if text_of(b) == name]
            assert found, f"no button {name!r} on {self.url}"
            return self.submit(next(found[0].iterancestors("form")))
        box = self.field(name)
        assert box.get("type") == role
        if "checked" in box.attrib:
            del box.attrib["checked"]
        else:
            box.set("checked", "")
        return self

    def submit(self, form):
        fields = defaultdict(list)
        for one in form.iter("input", "select", "textarea"):
            if one.get("type") in ("checkbox", "radio") and "checked" not in one.attrib:
                continue
            value = one.get("value", "")
            if one.tag == "textarea":
                value = (one.text or "").removeprefix("\n")
            elif one.tag == "select":
                options = list(one.iter("option"))
                value = next((o for o in options if "selected" in o.attrib), options[0])
                value = value.get("value", value.text)
            fields[one.get("name")].append(value)
        if form.get("method") == "post":
            return self.goto(form.get("action"), dict(fields))
        return self.goto(f"{form.get('action')}?{urlencode(fields, doseq=True)}")

    def field(self, label):
        found = [one for one in self.page.iter("label") if text_of(one) == label]
        assert found, f"no label {label!r} on {self.url}"
        return self.page.get_element_by_id(found[0].get("for"))

    def choose(self, field, option):
        options = {text_of(one): one for one in field.iter("option")}
        assert option in options, f"no option {option!r} on {self.url}"
        for one in options.values():
            one.attrib.pop("selected", None)
        options[option].set("selected", "")

    def links(self):
        return sorted({urljoin(self.url, a.get("href")) for a in self.page.iter("a")})

    def rows(self, query, *values):
        database = self.session.database(SHOP)
        return [tuple(row) for row in database.execute(query, values)]
