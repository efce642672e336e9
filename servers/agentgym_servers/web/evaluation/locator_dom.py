"""The elements of a page as a locator sees them: their properties, forms and selections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urljoin

import lxml.html
import msgspec

from agentgym_servers.web.evaluation.locator_syntax import UNDEFINED
from agentgym_servers.web.evaluation.locator_values import Value
from agentgym_servers.web.text_browser.rendered_text import rendered_text, text_content
from agentgym_servers.web.text_browser.selectors import Element, Selector, read_selector


class TextNode(msgspec.Struct, frozen=True):
    """A text between elements."""

    text: str


class NodeList(msgspec.Struct, frozen=True):
    """What `querySelectorAll` gives: it has a length and places, and no method of an array."""

    nodes: tuple[Value, ...]


class Document(msgspec.Struct, frozen=True):
    """`document`: the root of a page, and its address."""

    root: Element
    url: str


def _children(element: Element) -> list[Element]:
    return [child for child in element if isinstance(child.tag, str)]


def _nodes(element: Element) -> list[Value]:
    nodes: list[Value] = [TextNode(element.text)] if element.text else []
    for child in element:
        nodes.append(child if isinstance(child.tag, str) else TextNode(child.text or ""))
        if child.tail:
            nodes.append(TextNode(child.tail))
    return nodes


def _beside(element: Element, *, before: bool) -> Element | None:
    beside = element.itersiblings(preceding=before)
    return next((one for one in beside if isinstance(one.tag, str)), None)


def outer_html(element: Element, *, with_tail: bool = False) -> str:
    """An element as HTML, with a hard blank written as browsers write it."""
    text = str(lxml.html.tostring(element, encoding="unicode", with_tail=with_tail))
    return text.replace("\u00a0", "&nbsp;")


def _inner_html(element: Element) -> str:
    holder = lxml.html.Element("b")
    holder.text = element.text or ""
    first = outer_html(holder)[len("<b>") : -len("</b>")]
    return first + "".join(outer_html(child, with_tail=True) for child in element)


_PROPERTIES_LOCATOR_DOM: Final[dict[str, Callable[[Element], Value]]] = {
    "outerText": rendered_text,
    "innerText": rendered_text,
    "textContent": text_content,
    "innerHTML": _inner_html,
    "outerHTML": outer_html,
    "id": lambda element: element.get("id", ""),
    "className": lambda element: element.get("class", ""),
    "name": lambda element: element.get("name", ""),
    "title": lambda element: element.get("title", ""),
    "tagName": lambda element: element.tag.upper(),
    "children": lambda element: NodeList(tuple(_children(element))),
    "childNodes": lambda element: NodeList(tuple(_nodes(element))),
    "childElementCount": lambda element: len(_children(element)),
    "firstElementChild": lambda element: next(iter(_children(element)), None),
    "lastElementChild": lambda element: next(iter(_children(element)[::-1]), None),
    "firstChild": lambda element: next(iter(_nodes(element)), None),
    "lastChild": lambda element: next(iter(_nodes(element)[::-1]), None),
    "parentElement": lambda element: element.getparent(),
    "nextElementSibling": lambda element: _beside(element, before=False),
    "previousElementSibling": lambda element: _beside(element, before=True),
    "disabled": lambda element: "disabled" in element.attrib,
}

ELEMENT_PROPERTIES: Final = frozenset(_PROPERTIES_LOCATOR_DOM) | {
    "value", "checked", "selectedIndex", "selectedOptions", "options", "href", "src",
}  # fmt: skip


class Fields:
    """The values of a form's fields; as the page came, unless a subclass overrides it."""

    def value(self, element: Element) -> str:
        """The text of an `input` or a `textarea`."""
        if element.tag == "textarea":
            return text_content(element)
        default = "on" if element.get("type") in ("checkbox", "radio") else ""
        return str(element.get("value", default))

    def checked(self, element: Element) -> bool:
        """Whether a box is ticked, or an option chosen."""
        return ("selected" if element.tag == "option" else "checked") in element.attrib

    def selected(self, element: Element) -> list[Element]:
        """The options of a `select` that are chosen, in the order of the page."""
        options = list(element.iter("option"))
        chosen = [option for option in options if self.checked(option)]
        if "multiple" in element.attrib:
            return chosen
        if element.get("size", "1") not in ("", "0", "1"):
            return chosen[-1:]
        enabled = [option for option in options if "disabled" not in option.attrib]
        return chosen[-1:] or enabled[:1]


def read_property(whole: Element, name: str, fields: Fields, url: str) -> Value:
    """A property of an element."""
    match name:
        case "value" | "checked" | "selectedIndex" | "selectedOptions" | "options":
            return _form_property(whole, name, fields)
        case "href" | "src":
            found = whole.get(name)
            return "" if found is None else urljoin(url, found)
        case _:
            return _PROPERTIES_LOCATOR_DOM[name](whole)


def query(root: Element, selector: Selector, *, with_root: bool) -> Iterator[Element]:
    """The selected elements below an element; of a document the root is one of them."""
    if with_root and selector.matches(root):
        yield root
    yield from selector.below(root)


def closest(element: Element, selector: str) -> Element | None:
    """The element itself, or the nearest above it, that a selector selects."""
    return read_selector(selector).closest(element)


def option_value(option: Element) -> str:
    """The value of an `option`: its text where it has no attribute."""
    found = option.get("value")
    return " ".join(text_content(option).split()) if found is None else str(found)


def _form_property(element: Element, name: str, fields: Fields) -> Value:
    if element.tag == "select":
        options, chosen = list(element.iter("option")), fields.selected(element)
        match name:
            case "value":
                return option_value(chosen[0]) if chosen else ""
            case "selectedIndex":
                return options.index(chosen[0]) if chosen else -1
            case "options":
                return NodeList(tuple(options))
            case "selectedOptions":
                return NodeList(tuple(chosen))
    if name == "value" and element.tag in ("input", "textarea"):
        return fields.value(element)
    if name == "value" and element.tag == "option":
        return option_value(element)
    if name == "value" and element.tag == "button":
        return element.get("value", "")
    if name == "checked" and element.tag == "input":
        return fields.checked(element)
    return UNDEFINED
