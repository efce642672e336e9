"""OpenAI's chat completions and responses: requests to one form, and replies back.

Knows nothing about tokens, engines or connections.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from agentgym_env.errors import BadRequest
from agentgym_env.spaces import NestedTooDeeply, clean_json, clean_text
from agentgym_env.tools import ToolSpec
from agentgym_gateway.fields import LOGPROBS, Api, check_ignored_fields

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_UNSEEN: Final = ("function_call", "audio", "prefix", "partial")
"""Fields of a message that would change what the policy sees, and that no template shows. So does
the name of who speaks; that of a result repeats its call's."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of either API."""

    api: Api
    model: str
    messages: list[dict[str, Any]]
    tools: list[ToolSpec]
    max_tokens: int | None
    temperature: float | None
    stream: bool
    parallel_tool_calls: bool
    """Whether a reply may have several calls; otherwise only the first one is returned."""
    logprobs: bool
    strict_tools: bool
    """Whether a tool is to have arguments of its schema alone, which nothing ensures here."""
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What the policy answered."""

    id: str
    text: str
    """Without the calls."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """As chat completions have them."""
    finish_reason: Literal["stop", "length", "tool_calls"] = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    logprobs: list[dict[str, Any]] | None = None
    """Of each sampled token, if they were asked for."""

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message of chat completions."""
        calls = {"tool_calls": self.tool_calls} if self.tool_calls else {}
        return {"role": "assistant", "content": self.text or None, **calls}


def read_chat(body: Any, template_kwargs: Mapping[str, Any]) -> Request:
    """A request of `/v1/chat/completions`; raises `BadRequest` with what is wrong.

    `template_kwargs` are the run's arguments of the chat template.
    """
    values = _object(body, "the body")
    check_ignored_fields("chat", values, template_kwargs)
    messages = values.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message")
    options = values.get("stream_options") or {}
    return Request(
        api="chat",
        model=str(values.get("model", "")),
        messages=[_message(number, message) for number, message in enumerate(messages)],
        tools=_tools(values, nested=True),
        max_tokens=_count(values, "max_completion_tokens") or _count(values, "max_tokens"),
        temperature=_number(values, "temperature"),
        stream=_flag(values, "stream"),
        parallel_tool_calls=_flag(values, "parallel_tool_calls", default=True),
        logprobs=_flag(values, "logprobs"),
        strict_tools=_has_strict(values),
        include_usage=isinstance(options, dict) and _flag(options, "include_usage"),
    )


def read_response(
    body: Any, template_kwargs: Mapping[str, Any], earlier: Mapping[str, list[dict[str, Any]]]
) -> Request:
    """A request of `/v1/responses`; `earlier` has the messages up to each earlier response."""
    values = _object(body, "the body")
    check_ignored_fields("responses", values, template_kwargs)
    messages: list[dict[str, Any]] = []
    before = values.get("previous_response_id")
    if before is not None:
        if not isinstance(before, str) or before not in earlier:
            raise BadRequest(f"previous_response_id {str(before)[:80]!r} is none of this episode's")
        messages += [m for m in earlier[before] if m["role"] not in ("system", "developer")]
    if values.get("instructions"):
        messages.insert(0, {"role": "system", "content": _text(values["instructions"])})
    given = values.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise BadRequest("input must be a text, or a list with at least one item")
    messages += _items(items)
    return Request(
        api="responses",
        model=str(values.get("model", "")),
        messages=messages,
        tools=_tools(values, nested=False),
        max_tokens=_count(values, "max_output_tokens"),
        temperature=_number(values, "temperature"),
        stream=_flag(values, "stream"),
        parallel_tool_calls=_flag(values, "parallel_tool_calls", default=True),
        logprobs=LOGPROBS in (values.get("include") or ()),
        strict_tools=_has_strict(values),
    )


def _flag(values: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    found = values.get(name)
    if found not in (None, True, False):
        raise BadRequest(f"{name} must be true or false, got {str(found)[:40]!r}")
    return default if found is None else bool(found)


def _items(items: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages of input items; calls that follow each other are one message."""
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        values = _object(item, f"input {number}")
        kind = values.get("type", "message")
        if kind == "message":
            messages.append(_message(number, values))
        elif kind == "function_call":
            call = {
                "id": str(values.get("call_id", "")),
                "type": "function",
                "function": {
                    "name": _text(values.get("name")),
                    "arguments": _text(values.get("arguments")),
                },
            }
            last = messages[-1] if messages else {}
            if last.get("role") == "assistant":
                last.setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            answer = values.get("output")
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": str(values.get("call_id", "")),
                    "content": _parts(answer) if isinstance(answer, list) else _text(answer),
                }
            )
        elif kind != "reasoning":
            raise BadRequest(f"input {number} has the type {str(kind)[:40]!r}, which is not known")
    return messages


def _message(number: int, message: Any) -> dict[str, Any]:
    values = _object(message, f"message {number}")
    role = values.get("role")
    if role not in _ROLES:
        raise BadRequest(f"message {number} has the role {str(role)[:40]!r}")
    for name in (*_UNSEEN, *(["name"] if role != "tool" else [])):
        if values.get(name):
            raise BadRequest(f"{name} of message {number} cannot be shown to the policy")
    content = values.get("content")
    text = _parts(content) if isinstance(content, list) else _text(content)
    found: dict[str, Any] = {"role": role, "content": text}
    if not isinstance(values.get("tool_calls") or [], list):
        raise BadRequest(f"tool_calls of message {number} must be a list")
    if values.get("tool_calls"):
        found["tool_calls"] = [_call(number, call) for call in values["tool_calls"]]
    if values.get("tool_call_id"):
        found["tool_call_id"] = str(values["tool_call_id"])
    return found


def _call(number: int, call: Any) -> dict[str, Any]:
    values = _object(call, f"a tool call of message {number}")
    function = _object(values.get("function"), f"a tool call of message {number}")
    if not isinstance(function.get("name"), str):
        raise BadRequest(f"a tool call of message {number} has no name")
    arguments = function.get("arguments") or "{}"
    try:
        clean_json(json.loads(arguments) if isinstance(arguments, str) else arguments)
    except (NestedTooDeeply, RecursionError) as error:
        raise BadRequest(f"arguments of a tool call of message {number}: {error}") from error
    except ValueError:
        pass  # A model may write anything: it is shown as it is.
    return {
        "id": str(values.get("id", "")),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _parts(content: Sequence[Any]) -> str:
    """The text of content parts; raises for images and sounds, which the policy cannot see."""
    texts = []
    for part in content:
        values = _object(part, "a content part")
        kind = values.get("type")
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise BadRequest(f"a content part of the type {str(kind)[:40]!r} cannot be shown")
        texts.append(_text(values.get("text", values.get("refusal"))))
    return "".join(texts)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f"a text was expected, got {type(value).__name__}")
    return clean_text(value)


def _tools(values: Mapping[str, Any], *, nested: bool) -> list[ToolSpec]:
    choice = values.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise BadRequest(
            f"tool_choice {str(choice)[:60]!r} would change what is sampled; use auto or none"
        )
    given = values.get("tools") or []
    if not isinstance(given, list):
        raise BadRequest("tools must be a list")
    if choice == "none":
        return []
    found = []
    for tool in given:
        entry = _object(tool, "a tool")
        if entry.get("type", "function") != "function":
            raise BadRequest(f"a tool has the type {str(entry.get('type'))[:40]!r}; use function")
        function = _object(entry.get("function"), "a tool's function") if nested else entry
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise BadRequest("a tool has no name")
        given_schema = function.get("parameters") or {"type": "object", "properties": {}}
        schema, about = _object(given_schema, "a schema"), _text(function.get("description"))
        found.append(ToolSpec(function["name"], about, schema))
    return found


def _has_strict(values: Mapping[str, Any]) -> bool:
    """Whether a tool of either API is strict."""
    tools = values.get("tools") or ()
    return any(_flag({**tool, **(tool.get("function") or {})}, "strict") for tool in tools)


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{what} must be an object, got {type(value).__name__}")
    return value


def _count(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRequest(f"{name} must be a whole number from 1, got {str(value)[:40]!r}")
    return value


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadRequest(f"{name} must be a number, got {str(value)[:40]!r}")
    if not 0 <= value <= 2:
        raise BadRequest(f"{name} must be between 0 and 2, got {value}")
    return float(value)


def chat_body(request: Request, reply: Reply) -> dict[str, Any]:
    """The body of a chat completion."""
    choice = {
        "index": 0,
        "message": {**reply.message, "refusal": None},
        "finish_reason": reply.finish_reason,
        "logprobs": _chat_logprobs(reply),
    }
    return {
        "id": reply.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [choice],
        "usage": _chat_usage(reply),
    }


def chat_events(request: Request, reply: Reply) -> Iterator[dict[str, Any] | str]:
    """The chunks of a streamed chat completion."""
    head = {
        "id": reply.id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": request.model,
    }
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if reply.text:
        deltas.append({"content": reply.text})
    for number, call in enumerate(reply.tool_calls):
        deltas.append({"tool_calls": [{"index": number, **call}]})
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last = {"index": 0, "delta": {}, "finish_reason": reply.finish_reason}
    yield {**head, "choices": [{**last, "logprobs": _chat_logprobs(reply)}]}
    if request.include_usage:
        yield {**head, "choices": [], "usage": _chat_usage(reply)}
    yield "[DONE]"


def _chat_logprobs(reply: Reply) -> dict[str, Any] | None:
    return None if reply.logprobs is None else {"content": reply.logprobs, "refusal": None}


def _chat_usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _output(reply: Reply, status: str = "completed") -> list[dict[str, Any]]:
    """The output items of a response."""
    items: list[dict[str, Any]] = []
    if reply.text or not reply.tool_calls:
        part = {
            "type": "output_text", "text": reply.text, "annotations": [],
            "logprobs": reply.logprobs or [],
        }  # fmt: skip
        items.append(
            {
                "id": f"msg_{reply.id}", "type": "message", "role": "assistant",
                "status": status, "content": [part],
            }
        )  # fmt: skip
    for call in reply.tool_calls:
        items.append(
            {
                "id": f"fc_{call['id']}", "type": "function_call", "status": status,
                "call_id": call["id"], **call["function"],
            }
        )  # fmt: skip
    return items


def response_body(
    request: Request, reply: Reply, *, status: str = "completed", output: bool = True
) -> dict[str, Any]:
    """The body of a response."""
    cut = reply.finish_reason == "length" and status == "completed"
    usage = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
    return {
        "id": reply.id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": {},
        "model": request.model,
        "output": _output(reply) if output else [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": None,
        "temperature": request.temperature,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": usage if output else None,
    }


def response_events(request: Request, reply: Reply) -> Iterator[dict[str, Any]]:
    """The events of a streamed response."""
    number = -1

    def event(kind: str, **values: Any) -> dict[str, Any]:
        nonlocal number
        number += 1
        return {"type": kind, "sequence_number": number, **values}

    begun = response_body(request, reply, status="in_progress", output=False)
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for place, item in enumerate(_output(reply)):
        at = {"item_id": item["id"], "output_index": place}
        if item["type"] == "message":
            (part,) = item["content"]
            text = {**at, "content_index": 0}
            scores = part["logprobs"]
            opened = {**item, "status": "in_progress", "content": []}
            empty = {**part, "text": "", "logprobs": []}
            yield event("response.output_item.added", output_index=place, item=opened)
            yield event("response.content_part.added", **text, part=empty)
            yield event("response.output_text.delta", **text, delta=part["text"], logprobs=scores)
            yield event("response.output_text.done", **text, text=part["text"], logprobs=scores)
            yield event("response.content_part.done", **text, part=part)
        else:
            opened = {**item, "status": "in_progress", "arguments": ""}
            yield event("response.output_item.added", output_index=place, item=opened)
            arguments = item["arguments"]
            yield event("response.function_call_arguments.delta", **at, delta=arguments)
            yield event(
                "response.function_call_arguments.done",
                **at,
                name=item["name"],
                arguments=arguments,
            )
        yield event("response.output_item.done", output_index=place, item=item)
    kind = "incomplete" if reply.finish_reason == "length" else "completed"
    yield event(f"response.{kind}", response=response_body(request, reply))


def parts_of(request: Request, reply: Reply) -> list[bytes]:
    """What is sent: the body of a reply, or each event of a stream."""
    is_chat = request.api == "chat"
    if not request.stream:
        body = chat_body(request, reply) if is_chat else response_body(request, reply)
        return [json.dumps(body).encode()]
    events = chat_events(request, reply) if is_chat else response_events(request, reply)
    return [_encoded(event) for event in events]


def _encoded(event: dict[str, Any] | str) -> bytes:
    """An event of a stream."""
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    named = f"event: {event['type']}\n" if "type" in event else ""
    return f"{named}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
