"""A browser of text: tabs, history, cookies and forms over the sites of one episode."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from agentgym_servers.web.actions.calls import ENDINGS, Action
from agentgym_servers.web.evaluation.verified import Exchange
from agentgym_servers.web.layouts import MAX_TREE_CHARS, cut_tree
from agentgym_servers.web.sites.site import Request, Response, SiteSession
from agentgym_servers.web.sites.site_map import bounds_error, typed_error
from agentgym_servers.web.text_browser import gestures
from agentgym_servers.web.text_browser import gestures as keys
from agentgym_servers.web.text_browser.gestures import BrowserError
from agentgym_servers.web.text_browser.page import (
    BLANK,
    Page,
    as_html,
    blank_page,
    join_url,
    normal_url,
)
from agentgym_servers.web.text_browser.submission import Visit

_MAX_REDIRECTS: Final = 10
_MAX_TABS: Final = 20
_MAX_EXCHANGES: Final = 2_000
_MAX_HISTORY: Final = 50
_MAX_PAGE_CHARS: Final = 500_000
"""A longer page is read up to here; its tree would be cut far before."""
_MAX_KEPT_CHARS: Final = 16 * _MAX_PAGE_CHARS
"""Characters of all the pages that tabs may go back to, and of the recorded answers."""
_MAX_URL: Final = 100_000
_MAX_COOKIES: Final = 180
"""Of a host; Chromium keeps as many."""
_MAX_COOKIE_CHARS: Final = 4096
_SEEN_ONLY: Final = frozenset({"noop", "scroll"}) | ENDINGS


class _Tab:
    """A tab's pages, and which of them it shows."""

    def __init__(self) -> None:
        self.history = [blank_page()]
        self.at = 0

    @property
    def page(self) -> Page:
        return self.history[self.at]

    def show(self, page: Page) -> None:
        self.history[self.at + 1 :] = [page]
        del self.history[:-_MAX_HISTORY]
        self.at = len(self.history) - 1

    def chars(self) -> int:
        return sum(len(page.html) for page in self.history)

    def forget_oldest(self) -> bool:
        """Forget the page before all others; whether there was one before the shown one."""
        if self.at:
            del self.history[0]
            self.at -= 1
            return True
        return False


class TextBrowser:
    """A browser without scripts or styles whose pages come straight from a session's sites.

    Only `http` URLs of hosts that the session knows are opened; anything else is an error text and
    the page stays. Going back asks a site again for its page, except for the answer to a posted
    form. Fields do not keep what was typed over a navigation.
    """

    def __init__(self, session: SiteSession, max_tree_chars: int = MAX_TREE_CHARS) -> None:
        self._session = session
        self._max_tree_chars = max_tree_chars
        self._cookies: dict[str, dict[str, str]] = {}
        self._tabs = [_Tab()]
        self._exchanged_chars = 0
        self.exchanges: deque[Exchange] = deque()
        """The last requests and answers of the sites."""
        self.active = 0
        """Which tab is shown."""

    @property
    def url(self) -> str:
        """Where the shown tab is."""
        return self.document().url

    @property
    def tabs(self) -> tuple[tuple[str, str], ...]:
        """URL and title of each tab."""
        return tuple((tab.page.url, tab.page.title) for tab in self._tabs)

    def set_cookies(self, host: str, cookies: Mapping[str, str]) -> None:
        """Give the browser cookies of a host."""
        self._cookies.setdefault(host, {}).update(cookies)

    def document(self) -> Page:
        """The page of the shown tab."""
        return self._tabs[self.active].page

    def tree(self) -> str:
        """The shown page's tree; a tree that is too long is cut at a line, with a note."""
        return cut_tree(self.document().tree(), self._max_tree_chars)

    def open(self, url: str) -> Page:
        """A page as this session sees it now, outside all tabs.

        Raises:
            BrowserError: it is out of bounds, or no URL.
        """
        return self._fetch(Visit(url))

    def act(self, action: Action) -> str:
        """Do an action; the error as BrowserGym words it, empty if there is none."""
        try:
            visit = self._do(action)
            if visit is not None:
                self._go(visit)
        except BrowserError as error:
            return str(error)
        return ""

    def _do(self, action: Action) -> Visit | None:
        page, kind = self.document(), action.kind
        if kind in _SEEN_ONLY:
            return None
        if kind == "goto":
            error = typed_error(action.text(0))
            if error:
                raise BrowserError(error)
            return Visit(action.text(0))
        if kind == "keyboard_press":
            return keys.press(page, action.text(0))
        if kind in ("click", "fill", "hover", "select_option"):
            element = gestures.find(page, action.text(0))
            if kind == "click":
                return gestures.click(page, element, action.text(1), action.texts(2))
            if kind == "fill":
                gestures.fill(page, element, action.text(1))
                return keys.press(page, "Enter") if action.args[2] else None
            if kind == "select_option":
                gestures.select(page, element, action.texts(1))
            else:
                gestures.require_usable(element, kind)
        elif kind in ("go_back", "go_forward"):
            self._travel(-1 if kind == "go_back" else 1)
        elif kind == "new_tab":
            self._open_tab()
        elif kind == "tab_close":
            self._close_tab()
        elif kind == "tab_focus":
            self._focus_tab(action.args[0])
        else:
            raise BrowserError(f"NameError: Invalid action type {kind!r}.")
        return None

    def _go(self, visit: Visit) -> None:
        page = self.document()
        if visit.form is None and not visit.new_tab and self._is_within(page, visit.url):
            moved = page.at(normal_url(visit.url))
            self._tabs[self.active].show(moved)
            return
        found = self._fetch(visit)
        if visit.new_tab:
            self._open_tab()
            self._tabs[self.active].history = [found]
        else:
            self._tabs[self.active].show(found)
        while sum(tab.chars() for tab in self._tabs) > _MAX_KEPT_CHARS:
            if not any(tab.forget_oldest() for tab in self._tabs):
                break

    def _is_within(self, page: Page, url: str) -> bool:
        base, mark, _ = url.partition("#")
        return bool(mark) and normal_url(base) == page.url.partition("#")[0]

    def _fetch(self, visit: Visit) -> Page:
        url, form = visit.url, visit.form
        if url.strip() == BLANK:
            return blank_page()
        for _ in range(_MAX_REDIRECTS + 1):
            url, host = self._allowed(url)
            parts = urlsplit(url)
            cookies = self._cookies.setdefault(host, {})
            try:
                query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=1000)
            except ValueError:
                query = {}
            method = "GET" if form is None else "POST"
            path = unquote(parts.path)
            request = Request(method, host, path, query, form or {}, dict(cookies))
            response = self._limited(self._session.answer(request))
            self._record(Exchange(request, response, self.document().url))
            for name, value in response.cookies.items():
                if value is None:
                    cookies.pop(name, None)
                elif name in cookies or len(cookies) < _MAX_COOKIES:
                    cookies[name] = value[:_MAX_COOKIE_CHARS]
            if response.location is None:
                html = as_html(response.body, response.content_type)
                return Page(url, html, posted=form is not None)
            url = join_url(url, response.location)
            if response.status not in (307, 308):
                form = None
        raise BrowserError(f"Error: Page.goto: net::ERR_TOO_MANY_REDIRECTS at {url[:200]}")

    def _limited(self, response: Response) -> Response:
        """A site's answer as far as it is read."""
        if response.location is not None and len(response.location) > _MAX_URL:
            raise BrowserError("Error: Page.goto: net::ERR_INVALID_URL")
        if len(response.body) <= _MAX_PAGE_CHARS:
            return response
        return msgspec.structs.replace(response, body=response.body[:_MAX_PAGE_CHARS])

    def _record(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self._exchanged_chars += len(exchange.response.body)
        while self._exchanged_chars > _MAX_KEPT_CHARS or len(self.exchanges) > _MAX_EXCHANGES:
            self._exchanged_chars -= len(self.exchanges.popleft().response.body)

    def _allowed(self, url: str) -> tuple[str, str]:
        """A URL as it is requested and its host, if it is one of the session's."""
        error = bounds_error(url, self._is_known)
        if error:
            raise BrowserError(error)
        normal = normal_url(url)
        return normal, urlsplit(normal).netloc

    def _is_known(self, origin: str) -> bool:
        scheme, _, host = origin.partition("://")
        return scheme == "http" and self._session.knows(host)

    def _travel(self, step: int) -> None:
        tab = self._tabs[self.active]
        at = tab.at + step
        if not 0 <= at < len(tab.history):
            return
        page = tab.history[at]
        kept = page.posted or page.url == BLANK or page.shares_document(tab.page)
        if not kept:
            tab.history[at] = self._fetch(Visit(page.url))
        tab.at = at

    def _open_tab(self) -> None:
        if len(self._tabs) >= _MAX_TABS:
            raise BrowserError(f"Error: there are {_MAX_TABS} tabs. Close one with tab_close().")
        self._tabs.append(_Tab())
        self.active = len(self._tabs) - 1

    def _close_tab(self) -> None:
        del self._tabs[self.active]
        if not self._tabs:
            self._tabs.append(_Tab())
        self.active = len(self._tabs) - 1

    def _focus_tab(self, index: object) -> None:
        if not isinstance(index, int) or not 0 <= index < len(self._tabs):
            raise BrowserError(
                f"IndexError: list index out of range: there are tabs 0 to {len(self._tabs) - 1}."
            )
        self.active = index
