"""WebArena's rule for pages, `program_html`: a place on a page, and what must stand there."""

from __future__ import annotations

import contextlib
import html
from typing import Final

import msgspec

from agentgym_servers.web.page_access import Page, Pages, Rest, ScriptError
from agentgym_servers.web.site_functions import call_function, read_call
from agentgym_servers.web.tasks import InvalidTask, PageCheck
from agentgym_servers.web.text_match import exact_match, includes_choice

_LONGEST_FOUND: Final = 500


class Verdict(msgspec.Struct, frozen=True):
    """One rule of a task, and whether it holds."""

    rule: str
    """Such as `must_include`, or `program_html exact_match`."""
    passed: bool
    expected: str
    found: str
    """The first 500 characters of what was held against it."""
    where: str = "the answer"


def verdict(rule: str, passed: bool, expected: str, found: str, where: str) -> Verdict:
    """A verdict whose `found` is cut to length."""
    return Verdict(rule, passed, expected, found[:_LONGEST_FOUND], where)


def match_page(item: PageCheck, pages: Pages, rest: Rest | None, shop: str) -> list[Verdict]:
    """Judge one item of `program_html`; `shop` is the shop's base address."""
    url = item.url
    if url.startswith("func:"):
        url = call_function(read_call(url), pages.current(), rest, shop)
    where = f"{url or item.url} {item.locator}".strip()
    if not url:
        return _compare(item, "", where)
    if url == "last":
        return _compare(item, _select(item, pages.current(), rest, shop), where)
    page = pages.open(url)
    try:
        return _compare(item, _select(item, page, rest, shop), where)
    finally:
        page.close()


def _select(item: PageCheck, page: Page, rest: Rest | None, shop: str) -> str:
    """What stands at the item's place; empty where a script fails, for the page is a wrong one."""
    locator = item.locator
    if not locator.strip():
        return page.content()
    if locator.startswith("func:"):
        return call_function(read_call(locator), page, rest, shop)
    if not locator.startswith(("document.", "[...document.")):
        raise InvalidTask(
            f"The locator {locator!r} is none; begin with document., [...document. or func:."
        )
    with contextlib.suppress(ScriptError):
        for action in item.prep_actions:
            page.evaluate(action)
    try:
        # As in Python, not as in JavaScript: true is "True" and null is "None" here.
        return str(page.evaluate(locator))
    except ScriptError:
        return ""


def _compare(item: PageCheck, selected: str, where: str) -> list[Verdict]:
    selected = html.unescape(selected)
    required = item.required_contents
    if required.exact_match is not None:
        passed = exact_match(required.exact_match, selected)
        return [verdict("program_html exact_match", passed, required.exact_match, selected, where)]
    return [
        verdict("program_html must_include", includes_choice(one, selected), one, selected, where)
        for one in required.must_include or ()
    ]
