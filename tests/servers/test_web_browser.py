"""A browser of text: where it goes, what it sends, what it refuses."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest
from web_shop import BLOB, HOME, SHOP, bid, click, do, open_browser

from agentgym_servers.web.actions.calls import Action
from agentgym_servers.web.sites.site import Request, Response, SiteSession
from agentgym_servers.web.text_browser.browser import TextBrowser
from agentgym_servers.web.text_browser.fields import is_checked, value_of
from agentgym_servers.web.text_browser.gestures import BrowserError
from agentgym_servers.web.text_browser.page import Page


def sent(browser):
    """What the echo page says it was sent."""
    return json.loads(unescape(browser.document().html.split("<pre>")[1].split("</pre>")[0]))


def test_a_click_on_a_link_leads_to_its_page():
    browser = open_browser()
    assert click(browser, "link 'Cart'") == ""
    assert browser.url == HOME + "cart"
    assert browser.tree().startswith("RootWebArea 'cart', focused")


def test_a_posted_form_is_redirected_and_changes_the_database():
    browser = open_browser()
    assert click(browser, "button 'Add'") == ""
    assert browser.url == HOME + "cart"
    assert "StaticText 'Lamp'" in browser.tree()


def test_two_sessions_at_the_same_url_see_their_own_carts_and_cookies():
    one, other = open_browser(), open_browser()
    click(one, "button 'Add'")
    do(one, f"goto('{HOME}login')")
    do(one, f"type [{bid(one, 'textbox')}] [ann] [1]")
    for browser, told in ((one, "You are ann."), (other, "You are nobody.")):
        do(browser, f"goto('{HOME}me')")
        assert told in browser.tree()
    do(other, f"goto('{HOME}cart')")
    assert "Lamp" not in other.tree()


def test_a_cookie_stays_until_the_site_takes_it_away():
    browser = open_browser("login")
    do(browser, f"fill('{bid(browser, 'textbox')}', 'ann')")
    click(browser, "button 'Log in'")
    assert browser.url == HOME + "me"
    assert "You are ann." in browser.tree()
    do(browser, f"goto('{HOME}logout')")
    assert "You are nobody." in browser.tree()


def test_a_required_field_that_is_empty_keeps_the_form_and_gets_the_focus():
    browser = open_browser("login")
    assert click(browser, "button 'Log in'") == ""
    assert browser.url == HOME + "login"
    assert "textbox 'User', focused, required" in browser.tree()


DEFAULTS = {
    "token": ["t 1"],
    "name": ["Ann"],
    "mail": [""],
    "age": [""],
    "day": [""],
    "note": [""],
    "color": ["r"],
    "news": ["yes"],
    "size": ["s"],
    "fixed": ["f"],
    "go": ["first"],
}


@pytest.mark.parametrize(
    ("acts", "changes"),
    [
        ([], {}),
        ([("textbox 'Name'", "fill('{}', 'Bob & Co')")], {"name": ["Bob & Co"]}),
        ([("textbox 'Name'", "fill('{}', '')")], {"name": [""]}),
        ([("textbox 'Name'", "fill('{}', 'a\\nb')")], {"name": ["ab"]}),
        ([("textbox 'Note'", "fill('{}', 'a\\nb')")], {"note": ["a\r\nb"]}),
        ([("textbox 'Mail'", "fill('{}', 'a@b.c')")], {"mail": ["a@b.c"]}),
        ([("spinbutton 'Age'", "fill('{}', '7')")], {"age": ["7"]}),
        ([("Date 'Day'", "fill('{}', '2023-05-01')")], {"day": ["2023-05-01"]}),
        ([("combobox 'Color'", "select_option('{}', 'Blue')")], {"color": ["b"]}),
        ([("combobox 'Color'", "select_option('{}', 'b')")], {"color": ["b"]}),
        ([("combobox 'Color'", "select [{}] [Blue]")], {"color": ["b"]}),
        ([("listbox 'Tags'", "select_option('{}', ['x', 'z'])")], {"tags": ["x", "z"]}),
        ([("option 'y'", "click('{}')")], {"tags": ["y"]}),
        ([("checkbox 'Gift'", "click('{}')")], {"gift": ["on"]}),
        ([("checkbox 'News'", "click('{}')")], {"news": None}),
        ([("checkbox 'News'", "click('{}')")] * 2, {}),
        ([("radio 'Large'", "click('{}')")], {"size": ["l"]}),
        ([("textbox 'Name'", "fill('{}', 'x')"), ("button 'Reset'", "click('{}')")], {}),
        ([("button 'Idle'", "click('{}')")], {}),
        ([("textbox 'Name'", "fill('{}', 'A')"), (None, "press [b]")], {"name": ["Ab"]}),
        ([("textbox 'Name'", "click('{}')"), (None, "press [backspace]")], {"name": ["An"]}),
        ([("checkbox 'News'", "hover('{}')"), (None, "scroll(0, 100)")], {}),
        ([("radio 'Small'", "click('{}')"), (None, "press [tab]"), (None, "press [space]")],
         {"size": ["l"]}),
        ([("combobox 'Color'", "click('{}')"), (None, "press [arrowdown]")], {"color": ["b"]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["get", "post"])
def test_a_form_sends_what_its_fields_hold(method, acts, changes):
    browser = open_browser(method)
    for told, text in acts:
        assert do(browser, text.format(bid(browser, told) if told else "")) == ""
    assert click(browser, "button 'Send'") == ""
    expected = {k: v for k, v in (DEFAULTS | changes).items() if v is not None}
    assert sent(browser)["query" if method == "get" else "form"] == expected
    assert browser.url.startswith(HOME + "echo")


def test_the_pressed_button_is_sent_and_enter_presses_the_first():
    browser = open_browser("post")
    click(browser, "button 'Send differently'")
    assert sent(browser)["form"]["go"] == ["second"]
    browser = open_browser("post")
    do(browser, f"type [{bid(browser, 'textbox ' + repr('Name'))}] [Bob]")
    assert sent(browser)["form"] == DEFAULTS | {"name": ["Bob"]}


@pytest.mark.parametrize(
    ("told", "text", "error"),
    [
        (None, "click('9999')", 'ValueError: Could not find element with bid "9999"'),
        ("button 'Idle'", "fill('{}', 'x')", "Element is not an <input>, <textarea> or [cont"),
        ("checkbox 'Gift'", "fill('{}', 'x')", 'Input of type "checkbox" cannot be filled'),
        ("textbox 'Off'", "fill('{}', 'x')", "element is not enabled"),
        ("textbox 'Off'", "click('{}')", "element is not enabled"),
        ("textbox 'Fixed'", "fill('{}', 'x')", "element is not editable"),
        ("spinbutton 'Age'", "fill('{}', 'old')", "Cannot type text into input[type=number]"),
        ("combobox 'Color'", "select_option('{}', 'Green')", "it has 'Red', 'Blue'"),
        ("textbox 'Name'", "select_option('{}', 'x')", "Element is not a <select> element"),
        ("option 'Blue'", "click('{}')", "element is not visible"),
        (None, "click('2')", "element is not visible"),
        (None, "keyboard_press('Nokey')", 'Unknown key: "Nokey"'),
        (None, "tab_focus(5)", "IndexError: list index out of range"),
        (None, "goto('cart')", "Cannot navigate to invalid URL"),
    ],
)
def test_what_cannot_be_done_is_an_error_text_and_the_page_stays(told, text, error):
    browser = open_browser("get")
    before = browser.tree()
    assert error in do(browser, text.format(bid(browser, told) if told else ""))
    assert (browser.url, browser.tree()) == (HOME + "get", before)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "http://tiny.test.example.com/",
        "http://tiny.test:8080/",
        "http://a@tiny.test/",
        "http://[",
        "http://",
        "https://tiny.test/",
        "file:///etc/passwd",
        "data:text/html,x",
        "javascript:1",
        HOME + "away",
        HOME + "loop",
    ],
)
def test_an_address_out_of_bounds_is_refused_and_the_page_stays(url):
    browser = open_browser()
    assert do(browser, f"goto('{url}')").startswith("Error: Page.goto: ")
    assert browser.url == HOME
    with pytest.raises(BrowserError):
        browser.open(url)


@pytest.mark.parametrize("told", ["link 'Away'", "link 'Broken'"])
def test_a_link_out_of_bounds_is_refused_and_the_page_stays(told):
    browser = open_browser()
    assert "out of bounds" in click(browser, told)
    assert browser.url == HOME


def test_a_link_with_a_script_does_nothing():
    browser = open_browser()
    assert click(browser, "link 'Script'") == ""
    assert browser.url == HOME


def test_redirects_are_followed_with_their_query_and_fragment():
    browser = open_browser("old")
    assert browser.url == HOME + "cart?from=old#end"


def test_going_back_asks_the_site_again_and_forward_comes_back():
    browser = open_browser("cart")
    do(browser, f"goto('{HOME}')")
    click(browser, "button 'Add'")
    do(browser, "go_back()")
    do(browser, "go_back()")
    assert browser.url == HOME + "cart"
    assert "Lamp" in browser.tree()
    do(browser, "go_forward()")
    assert browser.url == HOME
    do(browser, "go_back()")
    do(browser, "go_back()")
    assert browser.url == "about:blank"
    do(browser, "go_back()")
    assert browser.tree() == "RootWebArea '', focused"


def test_the_answer_to_a_posted_form_is_not_asked_for_again():
    browser = open_browser("post")
    click(browser, "button 'Send differently'")
    answer = browser.tree()
    do(browser, f"goto('{HOME}cart')")
    do(browser, "go_back()")
    assert browser.tree() == answer


def test_a_fragment_keeps_the_page_and_what_was_typed():
    browser = open_browser("get")
    do(browser, f"fill('{bid(browser, 'textbox ' + repr('Name'))}', 'Bob')")
    do(browser, f"goto('{HOME}get#end')")
    assert browser.url == HOME + "get#end"
    assert "textbox 'Name' value='Bob'" in browser.tree()
    do(browser, "go_back()")
    assert browser.url == HOME + "get"
    assert "textbox 'Name' value='Bob'" in browser.tree()


def test_tabs_open_change_and_close():
    browser = open_browser()
    click(browser, "link 'Cart apart'")
    assert browser.tabs == ((HOME, "home"), (HOME + "cart", "cart"))
    assert browser.active == 1
    do(browser, "tab_focus(0)")
    assert browser.url == HOME
    cart = bid(browser, "link 'Cart'")
    do(browser, f"click('{cart}', modifiers=['Control'])")
    do(browser, "new_tab")
    assert [url for url, _ in browser.tabs] == [HOME, HOME + "cart", HOME + "cart", "about:blank"]
    for _ in range(4):
        do(browser, "close_tab")
    assert browser.tabs == (("about:blank", ""),)


def test_a_folded_link_can_be_clicked_once_its_summary_was():
    browser = open_browser("fold")
    cart = next(n for n, e in browser.document().document.by_bid.items() if e.tag == "a")
    assert "element is not visible" in do(browser, f"click('{cart}')")
    click(browser, "DisclosureTriangle 'More'")
    assert do(browser, f"click('{cart}')") == ""
    assert browser.url == HOME + "cart"


def test_an_unseen_element_is_not_told_and_cannot_be_clicked():
    browser = open_browser()
    unseen = next(n for n, e in browser.document().document.by_bid.items() if e.get("href") == "/x")
    assert "Unseen" not in browser.tree()
    assert "element is not visible" in do(browser, f"click('{unseen}')")


def test_a_page_opened_aside_is_fresh_and_touches_no_tab():
    browser = open_browser("get")
    do(browser, f"fill('{bid(browser, 'textbox ' + repr('Name'))}', 'Bob')")
    aside = browser.open(HOME + "get")
    name = aside.document.by_id["name"]
    assert value_of(name) == "Ann"
    assert value_of(browser.document().document.by_id["name"]) == "Bob"
    assert browser.tabs == ((HOME + "get", "get"),)


def test_the_source_stays_as_it_was_sent_while_properties_change():
    browser = open_browser("get")
    before = browser.document().html
    click(browser, "checkbox 'Gift'")
    assert browser.document().html == before
    assert is_checked(browser.document().document.by_id["gift"])


def test_a_long_tree_is_cut_at_a_line_and_says_so():
    whole = open_browser("get").tree()
    cut = open_browser("get", max_tree_chars=200).tree()
    *lines, last = cut.splitlines()
    assert "\n".join(lines) == whole[: len("\n".join(lines))]
    assert last.startswith("... ") and last.endswith(" more characters are left out")


def test_an_action_that_is_unknown_is_an_error_text():
    assert "Invalid action type" in open_browser().act(Action("upload_file", ("1", "x")))


class Frozen:
    """A site of one page from the tests' folder."""

    def __init__(self, name):
        self.html = (Path(__file__).parent / "web_pages" / f"{name}.html").read_text("utf-8")

    def make_database(self, seed):
        return SHOP.make_database(seed)

    def answer(self, database, request: Request) -> Response:
        return Response(self.html)


@pytest.mark.parametrize(
    ("name", "acts"),
    [
        ("login-typed", ["fill('9', 'ann')", "fill('12', 'pw')", "click('14')"]),
        ("login-focus", ["click('15')"]),
        ("refused-one", ["click('6')"]),
        ("refused-two", ["click('9')"]),
        ("refused-five", ["click('18')"]),
        ("refused-six", ["click('21')"]),
        ("refused-eight", ["click('29')"]),
        ("refused-nine", ["click('32')"]),
        ("refused-eleven", ["click('38')"]),
        ("product-set", ["fill('38', '3')", "select_option('41', 'Blue')", "click('45')"]),
        ("forms-button", ["click('82')"]),
        ("hidden-open", ["click('9')", "click('12')"]),
        ("links-fragment", ["click('62')"]),
        ("names-set", ["fill('21', '2024-02-29')", "fill('18', '7')", "fill('9', 'x')"]),
        (
            "forms-set",
            [
                "click('42')",
                "select_option('62', 'France')",
                "select_option('70', ['beta', 'gamma'])",
                "fill('56', 'one\\n\\nthree\\n')",
                "fill('23', '2023-12-31')",
                "fill('35', '2.5')",
                "fill('11', '')",
            ],
        ),
    ],
)
def test_after_actions_the_tree_is_the_one_that_chromium_has(name, acts):
    site = Frozen(name.partition("-")[0])
    browser = TextBrowser(SiteSession({"tiny.test": site}, {site: BLOB}))
    for text in [f"goto('{HOME}')", *acts]:
        assert do(browser, text) == ""
    expected = Path(__file__).parent / "web_pages" / f"{name}.txt"
    assert browser.tree() + "\n" == expected.read_text("utf-8")


def test_what_is_typed_into_a_page_shows_on_no_other_of_the_same_source():
    html = '<html><body><label for="q">Name</label><input id="q" type="text"></body></html>'
    first = Page("http://a.test/", html)
    fresh = first.tree()
    element = next(e for e in first.document.root.elements() if e.tag == "input")
    element.value = "typed"
    first.changed()
    second = Page("http://b.test/", html)
    assert "typed" in first.tree() and second.tree() == fresh == Page("http://c.test/", html).tree()
    assert second.document.root is not first.document.root
    assert second.tree() == fresh, "parsed anew"
