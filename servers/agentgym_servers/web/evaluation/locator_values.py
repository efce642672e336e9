"""JavaScript's values, as far as locators use them: texts, numbers, arrays and their operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from agentgym_servers.web.evaluation.locator_syntax import UNDEFINED
from agentgym_servers.web.evaluation.page_access import JsonValue, ScriptError, UnsupportedLocator

Value = Any
"""A JavaScript value: str, int, float, bool, None, UNDEFINED, list, or one of the classes here."""

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
