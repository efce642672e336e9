"""Tool calls in a policy's text: how each family of models writes them.

Each family of models has a syntax. Which one a model has is found by its chat template: it renders
a call, and the syntax that reads the same call back is the model's.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentgym_env.errors import ConfigError
from agentgym_env.spaces import clean_json
from agentgym_env.tools import ToolSpec

MAX_CALLS: Final = 32
"""Calls that are read in one response; further ones are not carried out."""


def placeholder() -> str:
    """A word that nobody can guess: it finds a place in what a chat template renders."""
    return f"X{secrets.token_hex(8)}X"


def call_id(number: int) -> str:
    """The id of a response's call: nine letters and digits, as Mistral's templates demand.

    The one that the policy writes is not used, since it can be any text.
    """
    return f"call{number:05d}"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as the policy wrote it."""

    name: str
    arguments: Mapping[str, Any]

    def as_message(self, number: int = 0) -> dict[str, Any]:
        """An entry of `tool_calls` in an assistant's message."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        return {"type": "function", "id": call_id(number), "function": function}


@dataclass(frozen=True, slots=True)
class BadCall:
    """A call that cannot be read; the message is for the policy."""

    message: str


_HERMES: Final = re.compile(r"<tool_call>\s*+")
_HERMES_MARK: Final = re.compile("</?tool_call>")
Parse = Callable[[str], list[WrittenCall | BadCall]]
"""Reads the calls in a text; empty if there is none."""


def _hermes(text: str) -> list[WrittenCall | BadCall]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and Qwen 3."""
    calls: list[WrittenCall | BadCall] = []
    at = unread = 0
    # By places in the text: a copy of the rest for each call would take quadratic time.
    while (found := _HERMES.search(text, at)) is not None:
        begin = found.end()
        try:
            row, at = json.JSONDecoder().raw_decode(text, begin)
            row = clean_json(row)
        except (ValueError, RecursionError):
            # Not JSON: it ends at the mark, which a text in it may not contain then.
            end = text.find("</tool_call>", begin)
            at = len(text) if end < 0 else end
            calls.append(_from_json(text[begin:at].strip()))
            unread += 1
            if unread == MAX_CALLS:  # each error counts the lines of the whole text
                break
        else:
            mark = _HERMES_MARK.search(text, at)
            end = len(text) if mark is None else mark.start()
            rest = text[at:end].strip()
            calls.append(_from_json(text[begin:end]) if rest else _from_object(row))
    return calls


def _llama(text: str) -> list[WrittenCall | BadCall]:
    """`{"name": ..., "parameters": {...}}` as the whole text: Llama 3.1 and later."""
    body = text.strip().removeprefix("<|python_tag|>").strip()
    return [_from_json(body)] if body.startswith("{") else []


def _mistral(text: str) -> list[WrittenCall | BadCall]:
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}, "id": ...}]`, or `[TOOL_CALLS]name{...}`."""
    _, mark, body = text.partition("[TOOL_CALLS]")
    if not mark:
        return []
    if not body.lstrip().startswith("["):
        parts = [part for part in re.split(r"\[TOOL_CALLS\]", body) if part.strip()]
        return [_named(part) for part in parts]
    try:
        rows = _read(body)
    except (ValueError, RecursionError) as error:
        return [BadCall(f"The calls are not valid JSON: {error}.")]
    return [_from_object(row) for row in rows] or [BadCall("The list of calls is empty.")]


def _harmony(text: str) -> list[WrittenCall | BadCall]:
    """`to=functions.NAME<|channel|>commentary json<|message|>{...}`: gpt-oss."""
    found = re.search(r"to=functions\.([\w.-]++)", text)
    if found is None:
        return []
    _, mark, body = text[found.end() :].partition("<|message|>")
    return [_with_arguments(found[1], body.removesuffix("<|call|>"))] if mark else []


def _xml(text: str) -> list[WrittenCall | BadCall]:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>`: Qwen3-Coder and Qwen3.5."""
    calls: list[WrittenCall | BadCall] = []
    for body in _between(text, "<tool_call>", "</tool_call>"):
        found = re.fullmatch(r"<function=([^\n>]+)>(.*?)</function>", body, re.DOTALL)
        if found is None:
            calls.append(BadCall("A call has the form <function=NAME> ... </function>."))
            continue
        name, form = found[1].strip(), r"<parameter=([^\n>]++)>\n?(?>(.*?)\n?</parameter>)"
        calls.append(_from_pairs(name, found[2], form, "<parameter=KEY> ... </parameter>"))
    return calls


def _glm(text: str) -> list[WrittenCall | BadCall]:
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM-4.5."""
    calls: list[WrittenCall | BadCall] = []
    for body in _between(text, "<tool_call>", "</tool_call>"):
        name = re.match(r"[\w.-]+", body)
        if name is None:
            calls.append(BadCall("A call begins with the name of a tool."))
            continue
        form = r"<arg_key>(?>(.*?)</arg_key>)\s*+<arg_value>(?>(.*?)</arg_value>)"
        shown = "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>"
        calls.append(_from_pairs(name[0], body[name.end() :], form, shown))
    return calls


SYNTAXES: Final[Mapping[str, Parse]] = {
    "hermes": _hermes,
    "llama": _llama,
    "mistral": _mistral,
    "harmony": _harmony,
    "xml": _xml,
    "glm": _glm,
}
"""The known syntaxes by name."""


def write_hermes(calls: Sequence[WrittenCall]) -> str:
    """The text of calls in the syntax `hermes`."""
    rows = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
    return "\n".join(
        f"<tool_call>\n{json.dumps(row, ensure_ascii=False)}\n</tool_call>" for row in rows
    )


def written_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """The calls of an API's message in the syntax `hermes`, as they are: not all can be read."""
    texts = []
    for call in calls:
        name, arguments = (call["function"].get(key) for key in ("name", "arguments"))
        body = arguments if isinstance(arguments, str) else json.dumps(arguments)
        row = f'{{"name": {json.dumps(name)}, "arguments": {body}, "id": {json.dumps(call["id"])}}}'
        texts.append(f"<tool_call>\n{row}\n</tool_call>")
    return "\n".join(texts)


PROBE: Final = WrittenCall("probe", {"text": placeholder()})
"""A call that a template renders, to see how it writes one."""


def syntax_of(rendered: str) -> Parse:
    """The syntax that reads `PROBE` in a template's rendering of it.

    Raises `ConfigError` if none does.
    """
    for parse in SYNTAXES.values():
        found = [(c.name, dict(c.arguments)) for c in parse(rendered) if isinstance(c, WrittenCall)]
        if found == [(PROBE.name, dict(PROBE.arguments))]:
            return parse
    raise ConfigError(
        f"the chat template writes a tool call as {rendered.strip()[:120]!r}, which is none of the "
        f"known forms ({', '.join(SYNTAXES)}); use another action_format, or another template"
    )


_JSON_KINDS: Final = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
    list: "array", dict: "object",
}  # fmt: skip


class _Text(str):
    """An argument of a syntax without types, whose type the schema says."""

    __slots__ = ()


def typed_arguments(arguments: Mapping[str, Any], tool: ToolSpec) -> dict[str, Any]:
    """The arguments, with the types that the tool's schema gives to those of untyped syntaxes."""
    known = tool.parameters.get("properties", {})
    return {name: _of_type(value, known.get(name, {})) for name, value in arguments.items()}


def _of_type(value: Any, schema: Mapping[str, Any]) -> Any:
    """A text without a type as what the schema admits: as JSON if the schema names its type."""
    if not isinstance(value, _Text):
        return value
    text = str(value)
    try:
        found = _read(text)
    except (ValueError, RecursionError):
        return text
    if "enum" in schema or "const" in schema:
        return text if text in schema.get("enum", [schema.get("const")]) else found
    kinds, kind = _kinds(schema), _JSON_KINDS[type(found)]
    # These syntaxes write a text as it is, so its quotes are part of it.
    is_other = kind != "string" and (kind in kinds or (kind == "integer" and "number" in kinds))
    return text if not is_other and ("string" in kinds or not schema) else found


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema names."""
    kind = schema.get("type", [])
    found = {kind} if isinstance(kind, str) else set(kind)
    return found.union(*map(_kinds, schema.get("anyOf") or schema.get("oneOf") or []))


def _between(text: str, begin: str, end: str) -> list[str]:
    """What is between two marks, each time; the last end may be missing."""
    _, *parts = text.split(begin)
    return [part.partition(end)[0].strip() for part in parts]


def _from_pairs(name: str, body: str, form: str, shown: str) -> WrittenCall | BadCall:
    """A call whose body is nothing but arguments of a form; the first other text ends it."""
    pair, arguments, at = re.compile(rf"\s*+{form}", re.DOTALL), {}, 0
    while (found := pair.match(body, at)) is not None:
        arguments[found[1].strip()] = _Text(found[2])
        at = found.end()
    if rest := body[at:].strip():
        return BadCall(f"The arguments of {name[:80]} have the form {shown}, got {rest[:80]!r}.")
    return WrittenCall(name, arguments)


def _read(text: str) -> Any:
    """The value of a text in JSON; raises `ValueError` or `RecursionError` if it is not one."""
    return clean_json(json.loads(text))


def _from_json(body: str) -> WrittenCall | BadCall:
    try:
        return _from_object(_read(body))
    except (ValueError, RecursionError) as error:
        return BadCall(f"The call is not valid JSON: {error}.")


def _from_object(row: Any) -> WrittenCall | BadCall:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return BadCall('A call has a name and arguments: {"name": ..., "arguments": {...}}.')
    arguments = row.get("arguments", row.get("parameters", {}))
    if isinstance(arguments, str):
        return _with_arguments(row["name"], arguments)
    if not isinstance(arguments, dict):
        return BadCall(f"The arguments of {row['name'][:80]} are not an object.")
    return WrittenCall(row["name"], arguments)


def _named(part: str) -> WrittenCall | BadCall:
    name, mark, rest = part.partition("[ARGS]")
    if not mark:
        name, mark, rest = part.partition("{")
        rest = mark + rest
    return _with_arguments(name.strip(), rest)


def _with_arguments(name: str, body: str) -> WrittenCall | BadCall:
    try:
        arguments = _read(body)
    except (ValueError, RecursionError) as error:
        return BadCall(f"The arguments of {name[:80]} are not valid JSON: {error}.")
    if not isinstance(arguments, dict):
        return BadCall(f"The arguments of {name[:80]} are not an object.")
    return WrittenCall(name, arguments)
