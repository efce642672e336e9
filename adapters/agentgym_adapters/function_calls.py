"""Function calls as chat models write them: a JSON object with `name` and `arguments`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_HOW: Final = 'Write one JSON object: {"name": "...", "arguments": {...}}'


def how_to_call(schemas: Iterable[Mapping[str, Any]]) -> str:
    """The instructions for a policy: the available functions and how to call one."""
    told = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    return f"These are the functions, as JSON:\n{told}\n\nTo call one: {_HOW[0].lower()}{_HOW[1:]}"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function by name, and its arguments."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def render(self) -> str:
        """The text that `read_call` reads."""
        return json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)


def read_call(text: str) -> FunctionCall | str | None:
    """The call in a text; an error message for an invalid call; None for a text without a call."""
    content = text.strip()
    if _OPEN in content:
        calls = content.split(_OPEN)[1:]
        if len(calls) > 1:
            return f"There are {len(calls)} calls; make one at a time."
        content = calls[0].partition(_CLOSE)[0].strip()
    elif not content.startswith("{"):
        return None
    try:
        given = json.loads(content)
    except (ValueError, RecursionError) as error:
        return f"The call is no JSON: {error}. {_HOW}"
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return f"The call names no function. {_HOW}"
    arguments = given.get("arguments", {})
    if isinstance(arguments, str):
        # Some models write the arguments as OpenAI's API carries them: JSON within JSON.
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return f"The arguments are not an object. {_HOW}"
    return FunctionCall(given["name"], arguments)
