"""Evaluates locators over an lxml tree, without a JavaScript engine and without `eval`.

A locator is checked before it runs: `check_locator` rejects an unknown name,
so that a task which a backend cannot judge is known as such before anyone plays it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

import lxml.html

from agentgym_servers.web.evaluation.locator_dom import (
    ELEMENT_PROPERTIES,
    Document,
    Fields,
    NodeList,
    TextNode,
    closest,
    query,
    read_property,
)
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
from agentgym_servers.web.evaluation.locator_values import (
    LIST_METHODS,
    TEXT_METHODS,
    Value,
    binary,
    call_list,
    call_text,
    is_true,
    plain,
)
from agentgym_servers.web.evaluation.page_access import JsonValue, ScriptError, UnsupportedLocator
from agentgym_servers.web.text_browser.selectors import read_selector

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
