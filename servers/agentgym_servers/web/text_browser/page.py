"""A loaded page: its source, its elements with what a user did to them, and its tree's text."""

from __future__ import annotations

from collections import OrderedDict
from html import escape
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from agentgym_servers.web.text_browser.accessibility import tree_text
from agentgym_servers.web.text_browser.dom import Document, Element

BLANK = "about:blank"
_KEPT = "%/:@!$&'()*+,;=~-._?"
"""What a browser leaves as it is in a path or a query."""

_MAX_KEPT = 1000
_MAX_KEPT_CHARS = 50_000
_kept: OrderedDict[str, tuple[str, str]] = OrderedDict()
"""Pages as they load -> their titles and trees: many episodes see the same ones. Long ones are
not among them."""


class Page:
    """A page in a tab. It is parsed when it is first looked into, and its tree is kept."""

    def __init__(self, url: str, html: str, posted: bool = False) -> None:
        """`posted` is whether it answers a form that was sent, which is never sent again."""
        self.url = url
        self.html = html
        """As the site sent it: what a user types and ticks does not show in it."""
        self.posted = posted
        self._document: Document | None = None
        self._focused: Element | None = None
        self._complaint = ""
        self._tree: str | None = None

    @property
    def document(self) -> Document:
        """The page's elements; fields.py reads their current values."""
        if self._document is None:
            self._document = Document(self.html)
            self._focused = self._document.autofocus
        return self._document

    @property
    def title(self) -> str:
        """The page's title."""
        return self._as_loaded()[0] if self._document is None else self._document.title

    @property
    def focused(self) -> Element | None:
        """The element that has the focus."""
        return self._focused if self.document else None

    def focus(self, element: Element | None, complaint: str = "") -> None:
        """Give an element the focus, or none; with the browser's error about it."""
        self._focused = element
        self._complaint = complaint
        self._tree = None

    def changed(self) -> None:
        """Forget the tree and any complaint, because an element has changed."""
        self._complaint = ""
        self._tree = None

    def tree(self) -> str:
        """The text of the page's accessibility tree."""
        if self._document is None:
            return self._as_loaded()[1]
        if self._tree is None:
            self._tree = tree_text(self._document, self._focused, self._complaint)
        return self._tree

    def _as_loaded(self) -> tuple[str, str]:
        """Title and tree of a page that has not been read yet."""
        found = _kept.get(self.html)
        if found is None:
            document = self.document
            self._tree = tree_text(document, self._focused)
            found = (document.title, self._tree)
            if len(self.html) <= _MAX_KEPT_CHARS:
                _kept[self.html] = found
            if len(_kept) > _MAX_KEPT:
                _kept.popitem(last=False)
        else:
            _kept.move_to_end(self.html)
        return found

    def shares_document(self, other: Page) -> bool:
        """Whether two are the same page at two of its places."""
        return self._document is not None and self._document is other._document

    def at(self, url: str) -> Page:
        """The same page, elements and all, at another place in it."""
        page = Page(url, self.html, self.posted)
        page._document = self.document
        target = urlsplit(url).fragment
        page._focused = None if unquote(target) in self.document.by_id else self._focused
        return page


def blank_page() -> Page:
    """What a new tab shows."""
    return Page(BLANK, "")


def as_html(body: str, content_type: str) -> str:
    """A site's answer as a page; what is not HTML is shown as it is."""
    if "html" in content_type.lower():
        return body
    return f"<html><head></head><body><pre>{escape(body, quote=False)}</pre></body></html>"


def normal_url(url: str) -> str:
    """A URL as a browser writes it, with a path and encoded; empty for what is no URL."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return ""
    path = quote(parts.path or "/", safe=_KEPT)
    host = parts.netloc.lower().removesuffix(":80")
    query = quote(parts.query, safe=_KEPT)
    return urlunsplit((parts.scheme.lower(), host, path, query, quote(parts.fragment, safe=_KEPT)))


def join_url(base: str, url: str) -> str:
    """Where a link leads from a page; empty for what is no URL."""
    try:
        return urljoin(base, url.strip())
    except ValueError:
        return ""
