"""Reads the fields of calls to AgentGym's servers, with the errors of FastAPI."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, `int` or `str`, and what it is where it is left out."""

    name: str
    kind: type
    default: Any = REQUIRED
    nullable: bool = False


class InvalidMessage(Exception):
    """A call does not have the fields it must have; `detail` says where."""

    def __init__(self, kind: str, where: Sequence[str | int], message: str, given: Any) -> None:
        super().__init__(message)
        self.detail = [{"type": kind, "loc": list(where), "msg": message, "input": given}]


def read_body(body: bytes, content_type: str, fields: Sequence[Field]) -> dict[str, Any]:
    """The fields of a JSON body; raises `InvalidMessage`."""
    if not body:
        raise InvalidMessage("missing", ["body"], "Field required", None)
    media = content_type.partition(";")[0].strip().lower()
    try:
        # A body that is not declared to be JSON is a text to FastAPI. Bytes may be UTF-16 to
        # `json`, of which the values were not counted.
        text = body.decode()
        given = json.loads(text) if media in ("", "application/json") else text
    except (ValueError, RecursionError) as error:
        place = getattr(error, "pos", 0)
        raise InvalidMessage("json_invalid", ["body", place], "JSON decode error", {}) from error
    if not isinstance(given, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise InvalidMessage("model_attributes_type", ["body"], text, given)
    return {field.name: _read(field, given, "body") for field in fields}


def read_query(query: str, fields: Sequence[Field]) -> dict[str, Any]:
    """The fields of a query string; raises `InvalidMessage`."""
    try:
        listed = parse_qs(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        listed = {}
    given = {name: values[-1] for name, values in listed.items()}
    return {field.name: _read(field, given, "query") for field in fields}


def _read(field: Field, given: Mapping[str, Any], source: str) -> Any:
    where = [source, field.name]
    if field.name not in given:
        if field.default is REQUIRED:
            missing_from = dict(given) if source == "body" else None
            raise InvalidMessage("missing", where, "Field required", missing_from)
        return field.default
    value = given[field.name]
    if value is None and field.nullable:
        return None
    return _as_int(value, where) if field.kind is int else _as_str(value, where)


def _as_str(value: Any, where: Sequence[str]) -> str:
    if not isinstance(value, str):
        raise InvalidMessage("string_type", where, "Input should be a valid string", value)
    return value


def _as_int(value: Any, where: Sequence[str]) -> int:
    """As pydantic reads an int: "3", 3.0 and true are whole numbers."""
    whole = "Input should be a valid integer"
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        text = f"{whole}, got a number with a fractional part"
        raise InvalidMessage("int_from_float", where, text, value)
    if isinstance(value, str):
        digits = value.strip()
        if digits.lstrip("+-").isdecimal() and len(digits) <= 4300:
            return int(digits)
        text = f"{whole}, unable to parse string as an integer"
        raise InvalidMessage("int_parsing", where, text, value)
    raise InvalidMessage("int_type", where, whole, value)
