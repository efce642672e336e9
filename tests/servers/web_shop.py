"""A shop of six pages for tests: log-in, products, a cart, a form of every kind, odd answers."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from html import escape

from agentgym_servers.web.actions.calls import ActionProblem
from agentgym_servers.web.actions.parse import parse_action
from agentgym_servers.web.sites.site import Request, Response, Site, SiteSession
from agentgym_servers.web.text_browser.browser import TextBrowser

HOME = "http://tiny.test/"
FORM = """<form action="/echo" method="{method}" {more}>
<input type="hidden" name="token" value="t 1">
<label for="name">Name</label> <input id="name" name="name" value="Ann">
<label for="mail">Mail</label> <input id="mail" name="mail" type="email">
<label for="age">Age</label> <input id="age" name="age" type="number" min="1" max="99">
<label for="day">Day</label> <input id="day" name="day" type="date">
<label for="note">Note</label> <textarea id="note" name="note"></textarea>
<label for="color">Color</label> <select id="color" name="color">
<option value="r">Red</option><option value="b">Blue</option></select>
<label for="tags">Tags</label> <select id="tags" name="tags" multiple>
<option>x</option><option>y</option><option>z</option></select>
<input type="checkbox" id="gift" name="gift"><label for="gift">Gift</label>
<input type="checkbox" id="news" name="news" value="yes" checked><label for="news">News</label>
<input type="radio" id="s1" name="size" value="s" checked><label for="s1">Small</label>
<input type="radio" id="s2" name="size" value="l"><label for="s2">Large</label>
<input name="off" value="no" disabled aria-label="Off">
<input name="fixed" value="f" readonly aria-label="Fixed">
<input value="nameless" aria-label="Nameless">
<button name="go" value="first">Send</button>
<button name="go" value="second">Send differently</button>
<button type="button">Idle</button>
<button type="reset">Reset</button>
</form>"""


class TinyShop:
    """A site whose cart is in the database."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:")
        database.execute("CREATE TABLE cart (name TEXT)")
        database.commit()
        return database

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        path = request.path
        if path == "/cart/add" and request.method == "POST":
            database.execute("INSERT INTO cart VALUES (?)", (request.form["product"][0],))
            return Response(status=302, location="/cart")
        if path == "/login" and request.method == "POST":
            user = request.form.get("user", [""])[0]
            return Response(status=303, location=HOME + "me", cookies={"user": user})
        if path == "/logout":
            return Response(status=302, location="me", cookies={"user": None})
        if path == "/echo":
            sent = {"method": request.method, "query": request.query, "form": request.form}
            return Response(json.dumps(sent), content_type="text/plain")
        moved = {
            "/loop": "/loop",
            "/away": "http://example.com/",
            "/old": "/cart?from=old#end",
        }.get(path)
        if moved:
            return Response(status=302, location=moved)
        return Response(_page(path.strip("/"), database, request))


def _page(name: str, database: sqlite3.Connection, request: Request) -> str:
    if name == "cart":
        rows = [row["name"] for row in database.execute("SELECT name FROM cart")]
        body = "<ul>" + "".join(f"<li>{escape(row)}</li>" for row in rows) + "</ul>"
    elif name == "me":
        body = f"<p>You are {escape(request.cookies.get('user', 'nobody'))}.</p>"
    elif name == "login":
        body = (
            '<form method="post"><label for="u">User</label> '
            '<input id="u" name="user" required><button>Log in</button></form>'
        )
    elif name in ("get", "post"):
        body = FORM.format(method=name, more="")
    elif name == "fold":
        body = "<details><summary>More</summary><p><a href='/cart'>Cart</a></p></details>"
    elif name == "home" or not name:
        body = (
            '<p><a href="cart">Cart</a> <a href="/cart" target="_blank">Cart apart</a> '
            '<a href="#end">End</a> <a href="http://example.com/">Away</a> '
            '<a href="javascript:x()">Script</a> <a href="http://[">Broken</a></p>'
            '<form action="/cart/add" method="post"><input type="hidden" name="product" '
            'value="Lamp"><button>Add</button></form><p hidden><a href="/x">Unseen</a></p>'
        )
    else:
        body = f"<p>Nothing is at {escape(name)}.</p>"
    return f"<!DOCTYPE html><html><head><title>{name or 'home'}</title></head><body>{body}</body>"


SHOP = TinyShop()
with closing(SHOP.make_database(0)) as _database:
    BLOB = _database.serialize()


class TinySession(SiteSession):
    """A session with the shop that is closed when nobody holds it any more."""

    def __init__(self, site: Site = SHOP) -> None:
        super().__init__({"tiny.test": site}, {site: BLOB})

    def __del__(self) -> None:
        self.close()


def open_browser(path: str = "", **options: int) -> TextBrowser:
    """A browser with a session of its own, at a page of the shop."""
    browser = TextBrowser(TinySession(), **options)
    assert do(browser, f"goto('{HOME}{path}')") == ""
    return browser


def do(browser: TextBrowser, text: str) -> str:
    """Do an action that is written in either grammar."""
    action = parse_action(text)
    assert not isinstance(action, ActionProblem), action.message
    return browser.act(action)


def bid(browser: TextBrowser, told: str) -> str:
    """The id of the one element whose line in the tree begins so, such as `link 'Cart'`."""
    lines = [line.strip() for line in browser.tree().splitlines()]
    (found,) = [line for line in lines if line.partition("] ")[2].startswith(told)]
    return found[1:].partition("]")[0]


def click(browser: TextBrowser, told: str) -> str:
    """Click the element that is told so."""
    return do(browser, f"click('{bid(browser, told)}')")
