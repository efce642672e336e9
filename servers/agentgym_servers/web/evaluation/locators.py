"""Evaluates locators over an lxml tree, without a JavaScript engine and without `eval`.

A locator is checked before it runs: `check_locator` rejects an unknown name,
so that a task which a backend cannot judge is known as such before anyone plays it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urljoin

import lxml.html
import msgspec

from agentgym_servers.web.evaluation.locator_syntax import (
    UNDEFINED,
    Array,
    Arrow,
    Binary,
    Call,
    Chain,
    Conditional,
    Index,
    Literal,
    Member,
    Name,
    Node,
    Not,
    read_locator,
)
from agentgym_servers.web.evaluation.page_access import JsonValue, ScriptError, UnsupportedLocator
from agentgym_servers.web.text_browser.rendered_text import rendered_text, text_content
from agentgym_servers.web.text_browser.selectors import Element, Selector, read_selector

Value = Any

"""A JavaScript value: str, int, float, bool, None, UNDEFINED, list, or one of the classes here."""


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

LIST_METHODS: Final = frozenset({"map", "filter", "some", "every", "find", "join", "includes"})

TEXT_METHODS: Final = frozenset(
    {"trim", "toLowerCase", "toUpperCase", "includes", "startsWith", "endsWith", "split",
     "toString"}
)  # fmt: skip


def is_true(value: Value) -> bool:
    """Whether JavaScript takes a value for true."""
    if isinstance(value, str | int | float):
        return bool(value)
    return value is not None and value is not UNDEFINED


def to_text(value: Value) -> str:
    """What JavaScript's `String(value)` returns."""
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    if value is UNDEFINED:
        return "undefined"
    if isinstance(value, list):
        return str(call_list(value, "join", [","]))
    raise UnsupportedLocator("A locator takes an element for a text; read a property of it.")


def binary(operator: str, left: Value, right: Callable[[], Value]) -> Value:
    """What an operator makes of two values; `right` is evaluated only where it counts."""
    match operator:
        case "||":
            return left if is_true(left) else right()
        case "&&":
            return right() if is_true(left) else left
        case "??":
            return right() if left is None or left is UNDEFINED else left
        case "+":
            return _sum(left, right())
        case "===" | "==":
            return _same(left, right(), strict=operator == "===")
        case "!==" | "!=":
            return not _same(left, right(), strict=operator == "!==")
        case _:
            return _in_order(operator, left, right())


def call_list(items: list[Value], name: str, arguments: list[Value]) -> Value:
    """A method of an array."""
    if name == "includes" and len(arguments) == 1:
        return any(_same(item, arguments[0], strict=True) for item in items)
    if name == "join" and len(arguments) <= 1:
        texts = ["" if item is None or item is UNDEFINED else to_text(item) for item in items]
        return (to_text(arguments[0]) if arguments else ",").join(texts)
    if len(arguments) != 1 or not callable(arguments[0]):
        raise ScriptError(f"{name} is to be called with a function.")
    results = [(item, arguments[0](item, place)) for place, item in enumerate(items)]
    match name:
        case "map":
            return [result for _, result in results]
        case "filter":
            return [item for item, result in results if is_true(result)]
        case "some":
            return any(is_true(result) for _, result in results)
        case "every":
            return all(is_true(result) for _, result in results)
        case _:
            return next((item for item, result in results if is_true(result)), UNDEFINED)


def call_text(text: Value, name: str, arguments: list[Value]) -> Value:
    """A method of a string; `toString` of any plain value."""
    match name, arguments:
        case "toString", []:
            return to_text(text)
        case "trim", []:
            return text.strip()
        case "toLowerCase", []:
            return text.lower()
        case "toUpperCase", []:
            return text.upper()
        case "includes", [str(part)]:
            return part in text
        case "startsWith", [str(part)]:
            return text.startswith(part)
        case "endsWith", [str(part)]:
            return text.endswith(part)
        case "split", [str(part)]:
            return text.split(part) if part else list(text)
    raise ScriptError(f"{name} is to be called with texts.")


def plain(value: Value, expression: str) -> JsonValue:
    """A value as it leaves a browser; undefined becomes null."""
    if value is None or value is UNDEFINED:
        return None
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, list):
        return [plain(item, expression) for item in value]
    raise UnsupportedLocator(f"The locator {expression!r} ends in no text; read a property.")


def _sum(left: Value, right: Value) -> Value:
    if _is_number(left) and _is_number(right):
        return left + right
    return to_text(left) + to_text(right)


def _same(left: Value, right: Value, *, strict: bool) -> bool:
    nothing = (None, UNDEFINED)
    if not strict and (left in nothing or right in nothing):
        return left in nothing and right in nothing
    if _is_number(left) and _is_number(right):
        return bool(left == right)
    if type(left) is type(right) and isinstance(left, str | bool):
        return bool(left == right)
    if not strict and isinstance(left, str | int | float) and isinstance(right, str | int | float):
        raise UnsupportedLocator("A locator compares a text with a number; use === instead.")
    return left is right


def _in_order(operator: str, left: Any, right: Any) -> bool:
    if not (_is_number(left) and _is_number(right)) and not (
        isinstance(left, str) and isinstance(right, str)
    ):
        raise UnsupportedLocator(f"A locator puts two unlike values in order by {operator}.")
    match operator:
        case "<":
            return bool(left < right)
        case ">":
            return bool(left > right)
        case "<=":
            return bool(left <= right)
        case _:
            return bool(left >= right)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_SELECTING: Final = frozenset({"querySelector", "querySelectorAll", "closest", "matches"})

_NODE_METHODS: Final = _SELECTING | {"getElementById", "getAttribute", "hasAttribute", "toString"}

_PROPERTIES: Final = ELEMENT_PROPERTIES | {"length", "title", "body", "URL", "documentElement"}

_METHODS: Final = _NODE_METHODS | LIST_METHODS | TEXT_METHODS


def evaluate_locator(expression: str, document: Document, fields: Fields) -> JsonValue:
    """The value of a locator on a page; raises `ScriptError` or `UnsupportedLocator`."""
    node = check_locator(expression)
    return plain(_Evaluation(document, fields).value(node, {}), expression)


@functools.lru_cache(maxsize=512)
def check_locator(expression: str) -> Node:
    """Read a locator, and raise `UnsupportedLocator` for what cannot be evaluated on any page."""
    node = read_locator(expression)
    _check(node, frozenset({"document"}), expression)
    return node


def _check(node: Node, names: frozenset[str], expression: str) -> None:
    inner: tuple[Node, ...] = ()
    match node:
        case Name(name) if name not in names:
            raise _refusal(name, expression)
        case Member(whole, name):
            if name not in _PROPERTIES:
                raise _refusal(name, expression)
            inner = (whole,)
        case Call(Member(whole, name), arguments):
            if name not in _METHODS:
                raise _refusal(f"{name}()", expression)
            if name in _SELECTING:
                _check_selector(arguments, expression)
            inner = (whole, *arguments)
        case Arrow(parameters, body):
            _check(body, names | set(parameters), expression)
        case Array(items):
            inner = tuple(item for item, _ in items)
        case Index(one, other) | Binary(_, one, other):
            inner = (one, other)
        case Chain(one) | Not(one):
            inner = (one,)
        case Conditional(test, then, otherwise):
            inner = (test, then, otherwise)
    for one in inner:
        _check(one, names, expression)


def _check_selector(arguments: tuple[Node, ...], expression: str) -> None:
    match arguments:
        case (Literal(str(selector)),):
            read_selector(selector)
        case _:
            raise _refusal("a selector that is no string", expression)


def _refusal(what: str, expression: str) -> UnsupportedLocator:
    return UnsupportedLocator(
        f"The locator {expression!r} uses {what}, which the text backend does not evaluate."
    )


class _Nothing(Exception):
    """`?.` met null or undefined: the whole chain is undefined."""


class _Evaluation:
    """Evaluates one expression on one page."""

    def __init__(self, document: Document, fields: Fields) -> None:
        self._document = document
        self._fields = fields

    def value(self, node: Node, names: Mapping[str, Value]) -> Value:
        match node:
            case Literal(value):
                return value
            case Name(name):
                return names.get(name, self._document)
            case Member() as member:
                return self._property(self._whole(member, names), member.name)
            case Index(whole, place):
                return _at(self.value(whole, names), self.value(place, names))
            case Call(method, arguments):
                whole = self._whole(method, names)
                return self._call(whole, method.name, [self.value(a, names) for a in arguments])
            case Chain(inner):
                try:
                    return self.value(inner, names)
                except _Nothing:
                    return UNDEFINED
            case Array(items):
                return self._array(items, names)
            case Arrow(parameters, body):
                return self._function(parameters, body, names)
            case Not(operand):
                return not is_true(self.value(operand, names))
            case Conditional(test, then, otherwise):
                return self.value(then if is_true(self.value(test, names)) else otherwise, names)
            case Binary(operator, left, right):
                return binary(operator, self.value(left, names), lambda: self.value(right, names))

    def _whole(self, member: Member, names: Mapping[str, Value]) -> Value:
        whole = self.value(member.whole, names)
        if whole is None or whole is UNDEFINED:
            if member.optional:
                raise _Nothing
            raise ScriptError(f"There is nothing to read {member.name} of.")
        return whole

    def _array(self, items: tuple[tuple[Node, bool], ...], names: Mapping[str, Value]) -> Value:
        array: list[Value] = []
        for item, spread in items:
            value = self.value(item, names)
            if not spread:
                array.append(value)
            elif isinstance(value, NodeList):
                array.extend(value.nodes)
            elif isinstance(value, list | str):
                array.extend(value)
            else:
                raise ScriptError("What is spread is no list.")
        return array

    def _function(
        self, parameters: tuple[str, ...], body: Node, names: Mapping[str, Value]
    ) -> Callable[..., Value]:
        def function(*arguments: Value) -> Value:
            given = [*arguments[: len(parameters)]]
            given += [UNDEFINED] * (len(parameters) - len(given))
            return self.value(body, {**names, **dict(zip(parameters, given, strict=True))})

        return function

    def _property(self, whole: Value, name: str) -> Value:
        if isinstance(whole, str | list | NodeList):
            if name != "length":
                return UNDEFINED
            return len(whole.nodes) if isinstance(whole, NodeList) else len(whole)
        if isinstance(whole, TextNode):
            return whole.text if name == "textContent" else UNDEFINED
        if isinstance(whole, Document):
            return self._document_property(name)
        if _is_element(whole) and name in ELEMENT_PROPERTIES:
            return read_property(whole, name, self._fields, self._document.url)
        return UNDEFINED

    def _document_property(self, name: str) -> Value:
        root = self._document.root
        match name:
            case "title":
                return " ".join((root.findtext(".//title") or "").split())
            case "body":
                return root.find("body")
            case "URL":
                return self._document.url
            case "documentElement":
                return root
            case _:
                return UNDEFINED

    def _call(self, whole: Value, name: str, arguments: list[Value]) -> Value:
        if isinstance(whole, list) and name in LIST_METHODS:
            return call_list(whole, name, arguments)
        if name == "toString" or (isinstance(whole, str) and name in TEXT_METHODS):
            return call_text(whole, name, arguments)
        is_document = isinstance(whole, Document)
        if is_document or _is_element(whole):
            root = whole.root if is_document else whole
            match name, arguments:
                case "querySelector", [selector]:
                    found = query(root, read_selector(selector), with_root=is_document)
                    return next(found, None)
                case "querySelectorAll", [selector]:
                    found = query(root, read_selector(selector), with_root=is_document)
                    return NodeList(tuple(found))
                case "getElementById", [str(wanted)] if is_document:
                    return next((one for one in root.iter() if one.get("id") == wanted), None)
                case "getAttribute", [str(attribute)] if not is_document:
                    return whole.get(attribute.lower())
                case "hasAttribute", [str(attribute)] if not is_document:
                    return attribute.lower() in whole.attrib
                case "closest", [selector] if not is_document:
                    return closest(whole, selector)
                case "matches", [selector] if not is_document:
                    return read_selector(selector).matches(whole)
        raise ScriptError(f"{name} is no method of what it is called on.")


def _is_element(value: Value) -> bool:
    return isinstance(value, lxml.html.HtmlElement)


def _at(whole: Value, place: Value) -> Value:
    if whole is None or whole is UNDEFINED:
        raise ScriptError(f"There is nothing to read {place!r} of.")
    items = whole.nodes if isinstance(whole, NodeList) else whole
    if (
        isinstance(items, str | list | tuple)
        and isinstance(place, int)
        and not isinstance(place, bool)
    ):
        return items[place] if 0 <= place < len(items) else UNDEFINED
    return UNDEFINED
