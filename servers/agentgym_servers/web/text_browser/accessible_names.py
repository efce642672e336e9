"""The names of elements in the accessibility tree, as Chromium computes them."""

from __future__ import annotations

import re
from typing import Final

from agentgym_servers.web.text_browser.dom import Document, Element, is_open, is_shown
from agentgym_servers.web.text_browser.fields import selected_label, value_of
from agentgym_servers.web.text_browser.roles import INLINE, input_type

_NAMED_BY_TEXT: Final = frozenset(
    {
        "DisclosureTriangle",
        "LayoutTableCell",
        "button",
        "cell",
        "columnheader",
        "heading",
        "link",
        "rowheader",
        "tab",
        "term",
    }
)

_APART: Final = frozenset(
    {"article", "aside", "footer", "form", "header", "main", "nav", "search", "table"}
)
"""What has a name of its own, or none: its text is not taken into another's name."""

_NAMELESS_ROLES: Final = (
    "Figcaption LabelText Legend caption code definition deletion emphasis insertion mark "
    "paragraph strong subscript superscript time"
)

_NEVER_NAMED: Final = frozenset(_NAMELESS_ROLES.split())

_HOLDERS: Final = {
    "fieldset": "legend",
    "input": "",
    "select": "",
    "table": "caption",
    "textarea": "",
}

_FIELDS: Final = frozenset({"input", "select", "textarea"})

_RUN_NAMES: Final = re.compile(r"[ \t\n\r\f]+")


def is_named(document: Document, element: Element) -> bool:
    """Whether the author has named the element, by an attribute of its own."""
    if not element.attributes:
        return False
    return bool(_authored_name(document, element) or element.get("title"))


def name_of(document: Document, element: Element, role: str) -> str:
    """The name under which Chromium reports the element."""
    by_text = role in _NAMED_BY_TEXT
    if role in _NEVER_NAMED or not (by_text or element.attributes or element.tag in _HOLDERS):
        return ""
    found = _authored_name(document, element)
    if found:
        return found
    tag = element.tag
    if tag in _FIELDS:
        found = _field_name(document, element)
    elif tag == "img":
        found = collapse(element.get("alt"))
    elif by_text:
        found = text_of(element)
    elif tag in _HOLDERS:
        for child in element.children:
            if not isinstance(child, str) and child.tag == _HOLDERS[tag]:
                found = text_of(child)
                break
    if found or not element.attributes:
        return found
    return collapse(element.get("title") or element.get("placeholder"))


def text_of(element: Element) -> str:
    """The text of an element as a name: blocks and pictures are set apart, spaces are single."""
    pieces: list[str] = []
    _gather(element, pieces)
    return collapse("".join(pieces))


def collapse(text: str) -> str:
    """Text with single spaces and none around it."""
    if text.isascii():
        return " ".join(text.split())
    return _RUN_NAMES.sub(" ", text).strip(" ")


def _authored_name(document: Document, element: Element) -> str:
    attributes = element.attributes
    if not attributes:
        return ""
    if "aria-labelledby" in attributes:
        named = (document.by_id.get(name) for name in attributes["aria-labelledby"].split())
        found = " ".join(text_of(part) for part in named if part is not None)
        if found:
            return found
    return collapse(attributes["aria-label"]) if "aria-label" in attributes else ""


def _field_name(document: Document, element: Element) -> str:
    kind = input_type(element) if element.tag == "input" else ""
    if kind in ("submit", "button", "reset"):
        return collapse(element.get("value"))
    if kind == "image":
        return collapse(element.get("alt") or element.get("value"))
    labels = document.labels.get(element.get("id"), []) if "id" in element.attributes else []
    if not labels:
        labels = [parent for parent in element.ancestors() if parent.tag == "label"][:1]
    return " ".join(filter(None, (text_of(label) for label in labels)))


def _gather(element: Element, pieces: list[str]) -> None:
    for child in element.children:
        if isinstance(child, str):
            pieces.append(child)
            continue
        tag = child.tag
        if not is_shown(child) or tag in _APART:
            continue
        if tag in _FIELDS or tag == "img" or "aria-label" in child.attributes:
            pieces += (" ", _piece(child, element), " ")
        elif tag == "br":
            pieces.append(" ")
        elif tag == "details" and not is_open(child):
            _gather_summary(child, pieces)
        elif tag in INLINE:
            _gather(child, pieces)
        else:
            pieces.append(" ")
            _gather(child, pieces)
            pieces.append(" ")


def _gather_summary(details: Element, pieces: list[str]) -> None:
    for child in details.children:
        if not isinstance(child, str) and child.tag == "summary":
            pieces += (" ", text_of(child), " ")


def _piece(child: Element, parent: Element) -> str:
    """What a field or a picture adds to the name of its container."""
    if child.tag == "img":
        return child.get("aria-label") or child.get("alt")
    if child.tag == "select":
        return selected_label(child)
    if child.tag == "input" and input_type(child) in ("checkbox", "radio"):
        return child.get("aria-label")
    if child.tag in _FIELDS:
        return "" if parent.tag == "label" else value_of(child)
    return child.get("aria-label")
