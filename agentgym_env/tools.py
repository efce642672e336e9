"""Tools: the actions of an environment as functions with named arguments.

A tool call is sent to the environment as an action, which is a text. A text world derives its tools
from the verbs of its grammar:

    verbs = (Verb("get {amount:int} {item}", "Take an item."), Verb("inventory", "What you hold."))

An environment whose actions are functions subclasses `tool_env.ToolEnv`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

_HOLE: Final = re.compile(r"\{(\w+)(?::(int|list|quoted))?\}")
_LIKE_A_HOLE: Final = re.compile(r"\{[\w\s:-]*\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SEPARATOR: Final = ", "
_TYPES: Final[Mapping[str, dict[str, Any]]] = {
    "": {"type": "string"},
    "int": {"type": "integer"},
    "list": {"type": "array", "items": {"type": "string"}},
    "quoted": {"type": "string"},
}
_MATCHES: Final[Mapping[str, str]] = {
    "": ".+?",
    "int": "-?[0-9]+",
    "list": ".+?",
    "quoted": r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""",
}


class BadArguments(ValueError):
    """A tool call that cannot become an action; the message is for the policy."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: its name, its description and the JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON schema of type `object`."""
    pattern: str = ""
    """The action, with an argument in each `{hole}`; empty for an action in JSON."""

    def as_function(self) -> dict[str, Any]:
        """The definition that chat templates and OpenAI's API take."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }

    def action(self, arguments: Mapping[str, Any]) -> str:
        """The action of a call; raises `BadArguments` for missing, unknown or wrong arguments."""
        known = self.parameters.get("properties", {})
        for name in self.parameters.get("required", ()):
            if name not in arguments:
                raise BadArguments(f"{self.name} needs the argument {name}.")
        unknown = sorted(arguments.keys() - known.keys())
        if unknown:
            has = f"it has {_SEPARATOR.join(known)}" if known else "it has none"
            raise BadArguments(f"{self.name} has no argument {unknown[0]!r}; {has}.")
        if not self.pattern:
            return json.dumps({"name": self.name, "arguments": arguments}, ensure_ascii=False)
        written = {
            name: _written(self.name, name, known[name], value) for name, value in arguments.items()
        }
        return _HOLE.sub(
            lambda hole: repr(written[hole[1]]) if hole[2] == "quoted" else written[hole[1]],
            self.pattern,
        )

    def arguments(self, action: str) -> dict[str, Any] | None:
        """The arguments of an action of this tool; None if it is not one."""
        if not self.pattern:
            return _json_arguments(self.name, action)
        found = _matcher(self.pattern).fullmatch(action.strip())
        if found is None:
            return None
        kinds = dict(_HOLE.findall(self.pattern))
        try:
            return {name: _read(kinds[name], text) for name, text in found.groupdict().items()}
        except (ValueError, SyntaxError):  # quotes around what Python cannot read
            return None


@dataclass(frozen=True, slots=True)
class Verb:
    """A form of a text world's actions, such as `get {amount:int} {item}`.

    A hole is a text, `{name:quoted}` a text in quotes, `{name:int}` a whole number, and
    `{name:list}` texts, separated by a comma and a space. Raises `ValueError` for a pattern that
    gives no tool.
    """

    pattern: str
    description: str = ""
    tool: str = ""
    """The tool's name; default: the words before the first hole, joined by `_`."""
    about: Mapping[str, str] | None = None
    """Descriptions of the arguments."""

    def __post_init__(self) -> None:
        wrong = _LIKE_A_HOLE.search(_HOLE.sub("", self.pattern))
        holes = [name for name, _ in _HOLE.findall(self.pattern)]
        twice = [name for name in holes if holes.count(name) > 1]
        unknown = sorted(set(self.about or ()) - set(holes))
        if wrong:
            problem = f"{wrong[0]} is no hole; write {{name}}, with :int, :list or :quoted"
        elif twice:
            problem = f"the hole {twice[0]} is there twice; give each its own name"
        elif unknown:
            problem = f"`about` describes {unknown[0]}, which is no hole"
        elif not self.tool and not _NAME.fullmatch(self._name):
            problem = "gives no name of a tool; set tool"
        elif not _NAME.fullmatch(self._name):
            problem = f"{self.tool!r} is no name of a tool; use letters, digits, _ and -"
        else:
            return
        raise ValueError(f"the verb {self.pattern!r}: {problem}")

    @property
    def _name(self) -> str:
        return self.tool or "_".join(re.findall(r"\w+", _HOLE.split(self.pattern)[0]))

    @property
    def spec(self) -> ToolSpec:
        """The tool."""
        holes = _HOLE.findall(self.pattern)
        about = self.about or {}
        properties = {
            hole: {**_TYPES[kind], **({"description": about[hole]} if hole in about else {})}
            for hole, kind in holes
        }
        parameters = {
            "type": "object",
            "properties": properties,
            "required": [hole for hole, _ in holes],
        }
        return ToolSpec(self._name, self.description, parameters, self.pattern)


ACT: Final = Verb("{action}", "Take one action, as the instruction describes it.", "act").spec
"""The tool of a world that declares none."""


def specs_of(verbs: Sequence[Verb]) -> list[ToolSpec]:
    """The tools of verbs; raises `ValueError` if two have one name."""
    specs = [verb.spec for verb in verbs]
    names = [spec.name for spec in specs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two verbs give the tool {twice[0]!r}; set tool for one of them")
    return specs


def call_of(tools: Sequence[ToolSpec], action: str) -> tuple[ToolSpec, dict[str, Any]] | None:
    """(tool, arguments) of an action; None if no tool gives this action."""
    for tool in tools:
        arguments = tool.arguments(action)
        if arguments is not None:
            return tool, arguments
    return None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as an action in JSON: `{"name": "turn", "arguments": {"number": 42}}`."""

    name: str
    arguments: dict[str, Any]

    @classmethod
    def read(cls, action: str) -> ToolCall | None:
        """The call of an action; None if it is not one."""
        try:
            found = json.loads(action)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or not {"name"} <= found.keys() <= {"name", "arguments"}:
            return None
        name, arguments = found["name"], found.get("arguments", {})
        is_call = isinstance(name, str) and isinstance(arguments, dict)
        return cls(name, arguments) if is_call else None


@cache
def _matcher(pattern: str) -> re.Pattern[str]:
    """A pattern that matches the actions of a verb."""
    parts, at = [], 0
    for hole in _HOLE.finditer(pattern):
        parts += [re.escape(pattern[at : hole.start()])]
        parts += [f"(?P<{hole[1]}>{_MATCHES[hole[2] or '']})"]
        at = hole.end()
    return re.compile("".join(parts) + re.escape(pattern[at:]), re.DOTALL | re.IGNORECASE)


def _read(kind: str, text: str) -> Any:
    match kind:
        case "int":
            return int(text)
        case "list":
            return text.split(_SEPARATOR)
        case "quoted":
            return ast.literal_eval(text)
    return text


def _written(tool: str, name: str, schema: Mapping[str, Any], value: Any) -> str:
    """An argument as text; raises `BadArguments` for a value of another type."""
    kind = schema["type"]
    if "enum" in schema and value not in schema["enum"]:
        choices = _SEPARATOR.join(map(str, schema["enum"]))
        raise BadArguments(f"The argument {name} of {tool} is one of {choices}.")
    if kind == "integer":
        text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text):
            return str(int(text))
        raise BadArguments(f"The argument {name} of {tool} is a whole number.")
    if kind == "array" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return _SEPARATOR.join(value)
    if isinstance(value, str):
        return value
    if kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    wanted = "a list of texts" if kind == "array" else "a text"
    raise BadArguments(f"The argument {name} of {tool} is {wanted}.")


def _json_arguments(name: str, action: str) -> dict[str, Any] | None:
    call = ToolCall.read(action)
    return call.arguments if call is not None and call.name == name else None
