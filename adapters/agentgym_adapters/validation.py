"""Validates messages of foreign protocols; errors have the form of pydantic's error lists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_PLACE = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"(?:required|unknown) field `(\w+)`")
_KINDS = (
    ("missing required field", "missing"),
    ("unknown field", "extra_forbidden"),
    (", got `", "type_error"),
)
_MAX_INPUT = 200


class InvalidMessage(Exception):
    """A message is invalid; `errors` lists where and why, as pydantic does."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__(errors[0]["msg"])
        self.errors = errors


def invalid_message(
    kind: str, where: Sequence[str | int], message: str, given: Any = None
) -> InvalidMessage:
    """One validation error; the input is included if it is short."""
    is_long = isinstance(given, str | list | dict) and len(given) > _MAX_INPUT
    shown = given if not is_long and len(repr(given)) <= _MAX_INPUT else None
    return InvalidMessage([{"type": kind, "loc": list(where), "msg": message, "input": shown}])


def convert(given: Any, kind: type[T], *where: str | int) -> T:
    """Convert to a `kind`; raises `InvalidMessage`. `where` is the place in the message."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        steps: list[str | int] = [
            name or (int(index) if index.isdigit() else index)
            for name, index in _STEP.findall(place[1] if place else "")
        ]
        field = _FIELD.search(text)
        if field is not None:
            steps.append(field[1])
        message = text[: place.start()] if place else text
        code = next((code for words, code in _KINDS if words in message), "value_error")
        raise invalid_message(code, [*where, *steps], message, given) from error


def read_json(body: bytes | str, *where: str | int) -> Any:
    """A body as JSON; raises `InvalidMessage`."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise invalid_message("json_invalid", where, f"JSON decode error: {error}") from error
