"""The conformance rule about tools: calls with arguments drawn from their schemas."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from agentgym_env.conformance.subject import NotApplicable, Subject
from agentgym_env.tools import ACT, BadArguments, ToolSpec

_CALLS_PER_TOOL: Final = 4
_TEXTS: Final = ("", "1", "a", "the red ball", "äöü", "'\"\\", "x" * 300)
_NUMBERS: Final = (0, 1, -1, 7, 10**9)


def calls_of_tools_never_raise(subject: Subject) -> str:
    """Every tool answers calls whose arguments follow its schema."""
    env = subject.make()
    tools = env.tool_specs()
    if tools == [ACT]:
        raise NotApplicable("it declares no tools")
    tried = 0
    for seed, task in subject.in_time(list(enumerate(subject.sample))):
        draw = random.Random(f"calls/{task}")
        subject.reset(env, task, seed)
        for spec in tools * _CALLS_PER_TOOL:
            if subject.time_is_up:
                break
            try:
                action = spec.action(arguments_of(spec, draw))
            except BadArguments:  # answered without the environment
                continue
            tried += 1
            if any(subject.step(env, action)[2:4]):
                subject.reset(env, task, seed)
    return f"{tried} calls of {len(tools)} tools"


def arguments_of(spec: ToolSpec, draw: random.Random) -> dict[str, Any]:
    """Arguments that follow the schema of a tool; optional ones are sometimes left out."""
    schema = spec.parameters
    return _object(schema, draw, schema.get("$defs", {}))


def _object(
    schema: Mapping[str, Any], draw: random.Random, named: Mapping[str, Any]
) -> dict[str, Any]:
    required = schema.get("required", ())
    return {
        name: _value(each, draw, named)
        for name, each in schema.get("properties", {}).items()
        if name in required or draw.random() < 0.5
    }


def _value(schema: Mapping[str, Any], draw: random.Random, named: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _value(named[schema["$ref"].rpartition("/")[2]], draw, named)
    if "anyOf" in schema:
        return _value(draw.choice(schema["anyOf"]), draw, named)
    if "enum" in schema:
        return draw.choice(schema["enum"])
    match schema.get("type"):
        case "integer" | "number":
            return _number(schema, draw)
        case "boolean":
            return draw.random() < 0.5
        case "null":
            return None
        case "array":
            return _array(schema, draw, named)
        case "object":
            return _object(schema, draw, named)
    text = draw.choice(_TEXTS)
    return text[: schema.get("maxLength", len(text))].ljust(schema.get("minLength", 0), "a")


def _number(schema: Mapping[str, Any], draw: random.Random) -> float:
    low: float = schema.get("minimum", schema.get("exclusiveMinimum", -(10**12) - 1) + 1)
    high: float = schema.get("maximum", schema.get("exclusiveMaximum", 10**12 + 1) - 1)
    number: float = draw.choice((*_NUMBERS, low, high))
    number = min(max(number, low), high)
    step: float | None = schema.get("multipleOf")
    return number if step is None else number // step * step


def _array(schema: Mapping[str, Any], draw: random.Random, named: Mapping[str, Any]) -> list[Any]:
    fixed = [_value(each, draw, named) for each in schema.get("prefixItems", ())]
    items = schema.get("items")
    if not isinstance(items, Mapping):
        return fixed
    least = schema.get("minItems", 0)
    count = max(least, min(draw.choice((0, 1, 3)), schema.get("maxItems", 3)))
    return [_value(items, draw, named) for _ in range(count)]
