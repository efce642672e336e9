"""What evaluators see of a browser of text."""

from __future__ import annotations

from agentgym_servers.web.html_page import CONTROLS, HtmlPage
from agentgym_servers.web.page import Page
from agentgym_servers.web.text_browser import TextBrowser


class TextPages:
    """The pages of an episode, for `evaluators.evaluate`."""

    def __init__(self, browser: TextBrowser) -> None:
        self._browser = browser

    def current(self) -> HtmlPage:
        """The page the agent is on, with what stands in its fields."""
        return _readable(self._browser.document())

    def open(self, url: str) -> HtmlPage:
        """A page as the agent's session sees it now, outside its tabs."""
        return _readable(self._browser.open(url))


def _readable(page: Page) -> HtmlPage:
    controls = [e for e in page.document.root.elements() if e.tag in CONTROLS]
    return HtmlPage(page.html, page.url, [(e.value, e.checked) for e in controls])
