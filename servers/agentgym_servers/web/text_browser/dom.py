"""A page as elements with BrowserGym's ids; it knows nothing about roles, forms or sites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from agentgym_env.errors import MissingExtra

try:
    from lxml import etree
except ModuleNotFoundError as error:
    raise MissingExtra("The web sites need lxml: pip install 'agentgym-sdk[web]'") from error

COMMENT: Final = "#comment"
SPACE: Final = " \t\n\r\f"
"""White space of HTML; a non-breaking space is not among it."""

_MARKED_TAGS: Final = (
    "a abbr acronym address applet area article aside audio b base basefont bdi bdo big blockquote "
    "body br button canvas caption center cite code col colgroup data datalist dd del details dfn "
    "dialog dir div dl dt em embed fieldset figcaption figure font footer form frame frameset h1 "
    "h2 h3 h4 h5 h6 head header hgroup hr html i iframe img input ins kbd label legend li link "
    "main map mark menu meta meter nav noframes noscript object ol optgroup option output p param "
    "picture pre progress q rp rt ruby s samp script search section select small source span "
    "strike strong style sub summary sup svg table tbody td template textarea tfoot th thead time "
    "title tr track tt u ul var video wbr"
)
_MARKED: Final = frozenset(_MARKED_TAGS.split())
_OPAQUE: Final = frozenset({"script", "style", "template", "noscript", "iframe"})
_UNSHOWN: Final = frozenset(
    {"head", "script", "style", "template", "noscript", "datalist", "col", "colgroup", COMMENT}
)
_STYLED_AWAY: Final = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_MAX_DEPTH: Final = 120
"""What is nested deeper is left out."""
_EMPTY_PAGE: Final = "<html><head></head><body></body></html>"


class Element:
    """An element, and what a user has done to it since the page was loaded."""

    __slots__ = ("attributes", "bid", "checked", "children", "opened", "parent", "tag", "value")

    def __init__(self, tag: str, attributes: dict[str, str], parent: Element | None) -> None:
        self.tag = tag
        self.attributes = attributes
        self.parent = parent
        self.children: list[Element | str] = []
        self.bid = -1
        """-1 where BrowserGym marks no such tag."""
        self.value: str | None = None
        """What was written into it; None while it is as the page gave it."""
        self.checked: bool | None = None
        """Of a checkbox, a radio button or an option, in the same way."""
        self.opened: bool | None = None
        """Of `details`, in the same way."""

    def get(self, name: str) -> str:
        """An attribute's value, empty where there is none."""
        return self.attributes.get(name, "")

    def elements(self) -> Iterator[Element]:
        """The element and all below it, in document order."""
        pending = [self]
        while pending:
            element = pending.pop()
            yield element
            pending.extend(
                child for child in reversed(element.children) if not isinstance(child, str)
            )

    def ancestors(self) -> Iterator[Element]:
        """Its parent, and so on up to the root."""
        element = self.parent
        while element is not None:
            yield element
            element = element.parent

    def text(self) -> str:
        """All text below it, as it was written."""
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)


class Document:
    """A parsed page with its elements by bid and by id, and its labels by what they are for."""

    def __init__(self, html: str) -> None:
        self.by_bid: dict[str, Element] = {}
        self.by_id: dict[str, Element] = {}
        self.labels: dict[str, list[Element]] = {}
        self.autofocus: Element | None = None
        """The first element that asks for the focus."""
        parser = etree.HTMLParser(encoding="utf-8")
        source = html.replace("\0", "") if html.strip() else _EMPTY_PAGE
        root = etree.fromstring(source.encode("utf-8", "replace"), parser)
        if root is None:
            root = etree.fromstring(_EMPTY_PAGE, parser)
        self.root = self._adopt(root, None, 0)

    @property
    def title(self) -> str:
        """The page's title with single spaces."""
        head = next((c for c in self.root.children if not isinstance(c, str)), None)
        for element in head.elements() if head is not None else ():
            if element.tag == "title":
                return " ".join(element.text().split())
        return ""

    def _adopt(self, node: etree._Element, parent: Element | None, depth: int) -> Element:
        element = self._new(node.tag, dict(node.items()), parent)
        if element.tag in _OPAQUE or depth > _MAX_DEPTH:
            return element
        children = element.children
        if node.text:
            children.append(node.text)
        if element.tag in ("pre", "textarea") and children:
            children[0] = str(children[0]).removeprefix("\n")
        if element.tag == "html" and (not len(node) or node[0].tag != "head"):
            children.append(self._new("head", {}, element))
        body: Element | None = None
        for child in node:
            if not isinstance(child.tag, str):
                children.append(Element(COMMENT, {}, element))
            elif child.tag == "tr" and element.tag == "table":
                if body is None:
                    body = self._new("tbody", {}, element)
                    children.append(body)
                body.children.append(self._adopt(child, body, depth + 2))
            else:
                body = None
                children.append(self._adopt(child, element, depth + 1))
            if child.tail:
                children.append(child.tail)
        return element

    def _new(self, tag: str, attributes: dict[str, str], parent: Element | None) -> Element:
        element = Element(tag, attributes, parent)
        if tag in _MARKED:
            element.bid = len(self.by_bid)
            self.by_bid[str(element.bid)] = element
        if attributes:
            if "id" in attributes:
                self.by_id.setdefault(attributes["id"], element)
            if tag == "label" and "for" in attributes:
                self.labels.setdefault(attributes["for"], []).append(element)
            if "autofocus" in attributes and self.autofocus is None:
                self.autofocus = element
        return element


def is_shown(element: Element) -> bool:
    """Whether the element itself, wherever it is, is drawn and reported."""
    if element.tag in _UNSHOWN:
        return False
    attributes = element.attributes
    if not attributes:
        return True
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return False
    if element.tag == "input" and attributes.get("type", "").lower() == "hidden":
        return False
    return "style" not in attributes or not _STYLED_AWAY.search(attributes["style"])


def is_open(details: Element) -> bool:
    """Whether a `details` is unfolded."""
    return "open" in details.attributes if details.opened is None else details.opened
