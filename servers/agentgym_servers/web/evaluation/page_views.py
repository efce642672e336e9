"""A page of a text backend as evaluators see it: its HTML, and what was typed into its forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import lxml.etree
import lxml.html

from agentgym_servers.web.evaluation.locator_dom import Document, Fields, outer_html
from agentgym_servers.web.evaluation.locators import check_locator, evaluate_locator
from agentgym_servers.web.evaluation.page_access import JsonValue
from agentgym_servers.web.tasks.tasks import PageCheck
from agentgym_servers.web.text_browser.browser import TextBrowser
from agentgym_servers.web.text_browser.page import Page
from agentgym_servers.web.text_browser.selectors import Element

CONTROLS: Final = ("input", "textarea", "select", "option")
"""What a user writes into, ticks or chooses."""

_EMPTY: Final = "<html><head></head><body></body></html>"

Written = tuple[str | None, bool | None]
"""A control's text and its tick as a user left them; None where the page's own is unchanged."""


class HtmlPage:
    """A page that was loaded once; what happens in the browser afterwards does not change it."""

    def __init__(self, html: str, url: str, written: Sequence[Written] = ()) -> None:
        """`written` is of the page's `CONTROLS`, in the order of the page."""
        source = html.replace("\0", "")
        try:
            root = lxml.html.document_fromstring(source if source.strip() else _EMPTY)
        except lxml.etree.ParserError:
            root = lxml.html.document_fromstring(_EMPTY)
        self._document = Document(root, url)
        self._fields = WrittenFields(root, written)

    @property
    def url(self) -> str:
        """Its address."""
        return self._document.url

    def content(self) -> str:
        """Its HTML, written as a browser writes it."""
        return outer_html(self._document.root)

    def evaluate(self, expression: str) -> JsonValue:
        """The value of a locator; raises `ScriptError` or `UnsupportedLocator`."""
        return evaluate_locator(expression, self._document, self._fields)

    def close(self) -> None:
        """There is nothing to close."""


def check_readable(items: Iterable[PageCheck]) -> None:
    """Raise `UnsupportedLocator` for the first of `program_html` that no `HtmlPage` could answer.

    A task set of a text backend asks this once, and leaves out by name what cannot be judged.
    """
    for item in items:
        for script in (item.locator, *item.prep_actions):
            if script.strip() and not script.startswith("func:"):
                check_locator(script)


class WrittenFields(Fields):
    """Fields in which a user may have written."""

    def __init__(self, root: Element, written: Sequence[Written]) -> None:
        self._written: dict[Element, Written] = dict(
            zip(root.iter(*CONTROLS), written, strict=False)
        )

    def value(self, element: Element) -> str:
        """The current text of an `input` or a `textarea`."""
        text = self._written.get(element, (None, None))[0]
        return super().value(element) if text is None else text

    def checked(self, element: Element) -> bool:
        """Whether a box is ticked, or an option chosen, now."""
        tick = self._written.get(element, (None, None))[1]
        return super().checked(element) if tick is None else tick


class TextPages:
    """The pages of an episode, for `evaluators.evaluate`."""

    def __init__(self, browser: TextBrowser) -> None:
        self._browser = browser

    def current(self) -> HtmlPage:
        """The page the agent is on, with the values of its fields."""
        return _readable(self._browser.document())

    def open(self, url: str) -> HtmlPage:
        """A page as the agent's session sees it now, outside its tabs."""
        return _readable(self._browser.open(url))


def _readable(page: Page) -> HtmlPage:
    controls = [e for e in page.document.root.elements() if e.tag in CONTROLS]
    return HtmlPage(page.html, page.url, [(e.value, e.checked) for e in controls])
