"""Locators and selectors without a browser: what they say, and what they refuse."""

import json
from pathlib import Path

import lxml.html
import pytest

from agentgym_servers.web.chromium.interpreter import package_folder
from agentgym_servers.web.evaluation.locators import check_locator
from agentgym_servers.web.evaluation.page_access import ScriptError, UnsupportedLocator
from agentgym_servers.web.evaluation.page_views import HtmlPage, check_readable
from agentgym_servers.web.tasks.tasks import PageCheck, RequiredContents, packaged_tasks
from agentgym_servers.web.text_browser.selectors import read_selector

PAGE = """<html><head><title> A  shop </title></head><body>
<div class="box wide" id="x"><p>One <b>two</b></p><p>Three</p><ul><li>a</li><li>b</li></ul></div>
<table><tbody><tr><td>1</td><td>2</td></tr><tr><td> 3 </td><td>4</td></tr></tbody></table>
<form class="f"><input name="product[price]" value="9.5">
<input type="checkbox" title="News" checked>
<select name="g"><option value="r">Red</option><option selected>Light  blue</option></select>
<textarea id="t">
hello</textarea></form>
<a href="/q" data-n="1 2">link</a><img src="i.png">
<div class="state"><b>x</b> busy</div><span hidden>unseen</span>
<pre>a  b
c</pre></body></html>"""
ROOT = lxml.html.document_fromstring(PAGE)


READ = json.loads(
    (Path(__file__).parent / "data" / "browser_readings.json").read_text(encoding="utf-8")
)
"""What Chromium 156 said of pages of our own."""


def evaluate(expression, written=(), html=PAGE):
    return HtmlPage(html, "http://shop.test/p/4", written).evaluate(expression)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("document.querySelector('#x').outerText", "One two\n\nThree\n\na\nb"),
        ("document.querySelector('.box.wide > p').innerText", "One two"),
        ("document.querySelector('table').outerText", "1\t2\n3\t4"),
        ("document.querySelector('pre').innerText", "a  b\nc"),
        ("document.querySelector('span').outerText", "unseen"),
        ("document.querySelector('body').outerText.includes('unseen')", False),
        ("document.querySelector('#x').innerHTML.startsWith('<p>One <b>')", True),
        ("document.querySelector('[name=\"product[price]\"').value", "9.5"),
        ("document.querySelector('[title=\"News\"').checked.toString()", "true"),
        ("document.querySelector('[title=\"News\"').checked", True),
        ("document.querySelector('select').selectedIndex", 1),
        ("document.querySelector('select').value", "Light blue"),
        ("document.querySelector('select').options[0].value", "r"),
        ("document.getElementById('t').value", "hello"),
        ("document.querySelector('.state').lastChild.textContent", " busy"),
        ("document.querySelector('ul').lastElementChild.outerText", "b"),
        (
            "document.querySelector('div').querySelector('ul').querySelectorAll('li')[0].outerText",
            "a",
        ),
        ("document.querySelector('form').getAttribute('class')", "f"),
        ("document.querySelector('form').getAttribute('nope')", None),
        ("document.querySelectorAll('li').length", 2),
        ("document.querySelectorAll('li').length > 1 ? 'many' : 'few'", "many"),
        ("document.querySelector('.no')?.querySelector('p').outerText", None),
        (
            "document.querySelector('p').outerText + (document.querySelector('.no')?.value || '')",
            "One two",
        ),
        ("[...document.querySelectorAll('td')].map(c => c.outerText).join('|')", "1|2|3|4"),
        (
            "[...document.querySelectorAll('td')].filter((c, i) => i > 2).map(c => c.outerText)",
            ["4"],
        ),
        ("[...document.querySelectorAll('td')].some(c => c.outerText.trim() === '3')", True),
        (
            "[...document.querySelectorAll('[href],[src]')]"
            ".map(e => e.getAttribute('href') || e.getAttribute('src')).join(' ')",
            "/q i.png",
        ),
        ("document.querySelector('a').href", "http://shop.test/q"),
        ("document.title", "A shop"),
        ("1 + 1 + 'a' + null + true", "2anulltrue"),
        ("!document.querySelector('.no')", True),
        ("'it\\'s \\u0041'", "it's A"),
    ],
)
def test_a_locator_says_what_a_browser_would(expression, value):
    found = evaluate(expression)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "expression",
    [
        "document.querySelector('.no').outerText",
        "document.querySelectorAll('li')[7].outerText",
        "document.querySelectorAll('li').map(x => x)",
        "document.querySelector('p').value.trim()",
    ],
)
def test_what_fails_in_a_browser_fails_as_a_script(expression):
    with pytest.raises(ScriptError):
        evaluate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "document.querySelector('a').click()",
        "document.cookie",
        "window.location",
        "eval('1')",
        "(() => { return 1 })()",
        "document.querySelector('a:hover').outerText",
        "document.querySelector('a' + 'b').outerText",
        "document.querySelector('a >').outerText",
        "document.querySelector('').outerText",
        "document.querySelector('a').outerText = 'x'",
        "document.querySelector('a').constructor",
        "`text`",
        "(" * 60 + "1" + ")" * 60,
    ],
)
def test_what_is_beyond_the_subset_is_refused_before_any_page_is_seen(expression):
    with pytest.raises(UnsupportedLocator):
        check_locator(expression)


def test_a_text_backend_can_read_all_of_webarena_s_locators_but_not_click():
    if package_folder("webarena") is None and package_folder("webarena_verified") is None:
        pytest.skip("the 812 tasks are not installed; run `make setup-web`")
    items = [item for task in packaged_tasks() for item in task.eval.program_html]
    clicking = [item for item in items if item.prep_actions]
    check_readable(item for item in items if not item.prep_actions)
    assert (len(items), len(clicking)) == (651, 10)


def test_an_item_is_readable_or_says_why_not():
    def item(locator, *actions):
        return PageCheck("last", locator, RequiredContents(exact_match="x"), list(actions))

    check_readable([item(""), item("func:anything()"), item("document.title")])
    with pytest.raises(UnsupportedLocator, match=r"uses click\(\)"):
        check_readable([item("document.title", "document.querySelector('a').click()")])


def test_a_list_of_several_lines_shows_no_choice_of_its_own():
    html = "<select size=3><option>a</option></select><select><option disabled>b<option>c</select>"
    chosen = "[...document.querySelectorAll('select')].map(s => s.value).join('|')"
    assert evaluate(chosen, html=html) == "|c"


def test_an_element_is_no_text():
    with pytest.raises(UnsupportedLocator, match="read a property"):
        evaluate("document.querySelector('a')")


def test_what_was_written_stands_in_the_fields():
    # The price, the box, the select and its two options, the text.
    written = [
        ("typed", None),
        (None, False),
        (None, None),
        (None, True),
        (None, False),
        ("t", None),
    ]
    assert evaluate("document.querySelector('input').value", written) == "typed"
    assert evaluate("document.querySelector('[title]').checked", written) is False
    assert evaluate("document.querySelector('select').value", written) == "r"
    assert evaluate("document.querySelector('textarea').value", written) == "t"


@pytest.mark.parametrize("html", ["", " ", "<!-- nothing -->", "\0", "<p>"])
def test_any_page_can_be_read(html):
    page = HtmlPage(html, "http://shop.test")
    assert "<body>" in page.content() or "<p>" in page.content()
    assert page.evaluate("document.querySelector('body')?.outerText") in ("", None)


def test_text_is_laid_out_as_in_chromium():
    readings = READ["innerText"]
    ours = [
        evaluate("document.querySelector('div').innerText", html=f"<div>{html}</div>")
        for html, _ in readings
    ]
    others = [(text, own) for (_, text), own in zip(readings, ours, strict=True) if text != own]
    # Blanks beside a select are what is left.
    assert len(readings) == 150 and len(others) <= 4
    assert all(text.split() == own.split() for text, own in others)


def test_selectors_select_as_in_chromium():
    expression = (
        "[...document.querySelectorAll({})].map(e => e.tagName + e.textContent.length).join(' ')"
    )
    others = [
        row
        for row in READ["selectors"]
        if evaluate(expression.format(json.dumps(row[0]))) != row[1]
    ]
    assert len(READ["selectors"]) > 80 and not others


@pytest.mark.parametrize(
    ("selector", "texts"),
    [
        ("li", ["a", "b"]),
        ("UL > li:first-child", ["a"]),
        ("li:last-child", ["b"]),
        ("li:nth-child(2n+1)", ["a"]),
        ("li:nth-child(even)", ["b"]),
        ("li:nth-child( 2 )", ["b"]),
        ("p:nth-of-type(2)", ["Three"]),
        ("li + li", ["b"]),
        ("p ~ p", ["Three"]),
        ("div p b, a", ["two", "link"]),
        ("div > b", ["x"]),
        ("[data-n~='2']", ["link"]),
        ("[data-n=2]", None),
        ("a[href^='/'][href$=q]", ["link"]),
        ("div.box:not(#x) b", []),
        ("li:not(:first-child)", ["b"]),
        ("[class*='ide'] > ul > *", ["a", "b"]),
        ("#x #nope", []),
        ("ul:has(li)", ["ab"]),
        ("li:is(:first-child, a)", ["a"]),
        ("a:hover", None),
        ("a:focus", None),
        ("a:visited", None),
        ("a:contains('link')", None),
        ("[class!=box]", None),
        ("a::before", None),
        ("a >", None),
        ("a, ", None),
        ("", None),
    ],
)
def test_a_selector_selects_what_css_does(selector, texts):
    if texts is None:
        with pytest.raises(UnsupportedLocator):
            read_selector(selector)
        return
    assert ["".join(one.itertext()) for one in read_selector(selector).below(ROOT)] == texts
