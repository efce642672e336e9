"""Bodies of requests: JSON, in which only fields are accepted that are obeyed or ask for nothing.

A field that would be ignored may change what an agent gets, and so what is trained on.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from agentgym_env.errors import BadRequest
from agentgym_env.spaces import clean_json

Api = Literal["chat", "responses"]

_READ: Final[Mapping[Api, frozenset[str]]] = {
    "chat": frozenset(
        {
            "messages", "model", "tools", "tool_choice", "max_tokens", "max_completion_tokens",
            "temperature", "stream", "stream_options.include_usage", "parallel_tool_calls",
            "logprobs",
        }
    ),
    "responses": frozenset(
        {
            "input", "instructions", "model", "tools", "tool_choice", "max_output_tokens",
            "temperature", "stream", "parallel_tool_calls", "previous_response_id",
        }
    ),
}  # fmt: skip
"""Fields that are obeyed. Of `tool_choice` and `temperature` see `read_chat` and the gateway."""

_FREE: Final = frozenset(
    {
        "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "seed", "service_tier", "store", "user", "stream_options",
        "stream_options.include_obfuscation", "text", "reasoning", "reasoning.summary",
        "reasoning.generate_summary", "prediction", "max_tool_calls", "request_id", "cache_salt",
    }
)  # fmt: skip
"""Fields whose values change nothing: labels, caches, and limits of tools that are not offered.

An episode's seed decides what is sampled: with that of a request, a group's episodes would agree.
"""

_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "stop": ([], ""),
    "n": (1,),
    "best_of": (1,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "text.format": ({"type": "text"},),
    "text.verbosity": ("medium",),
    "verbosity": ("medium",),
    "reasoning_effort": ("medium",),
    "reasoning.effort": ("medium",),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "echo": (False,),
    "return_token_ids": (False,),
    "truncation": ("disabled",),
    "background": (False,),
    "context_management": ([],),
}
"""Fields that would change what is sampled or shown, and the values that do not."""

_INCLUDED: Final = frozenset(
    {
        "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
        "message.input_image.image_url", "computer_call_output.output.image_url",
        "code_interpreter_call.outputs", "reasoning.encrypted_content",
    }
)  # fmt: skip
"""What `include` may name beside log-probabilities: parts of items that no reply has."""

LOGPROBS: Final = "message.output_text.logprobs"

_NESTED: Final = ("stream_options", "text", "reasoning")


class IgnoredFields(BadRequest):
    """A request has fields that would be ignored."""

    def __init__(self, names: list[str], known: Sequence[str]) -> None:
        self.param = names[0][:80]
        """The first of them, which OpenAI's errors name apart."""
        near = difflib.get_close_matches(self.param, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "leave it out"
        super().__init__(
            f"{', '.join(name[:80] for name in names[:10])} would be ignored, since replies are "
            f"sampled with the run's settings and trained on as they are; {hint}"
        )


def check_ignored_fields(
    api: Api, values: Mapping[str, Any], template_kwargs: Mapping[str, Any]
) -> None:
    """Raise `IgnoredFields` that names the fields which would be ignored.

    `template_kwargs` are the run's arguments of the chat template, which a request may repeat.
    """
    ignored = [
        name
        for name, value in _flat(values)
        if value is not None
        and name not in _READ[api]
        and name not in _FREE
        and value not in _NEUTRAL.get(name, ())
        and not (name == "chat_template_kwargs" and value == template_kwargs)
        and not (name == "include" and api == "responses" and _are_included(value))
    ]
    if ignored:
        raise IgnoredFields(ignored, sorted(_READ[api] - values.keys()))


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        yield name, value
        if name in _NESTED and value is not None:
            if not isinstance(value, dict):
                raise BadRequest(f"{name} must be an object, got {type(value).__name__}")
            yield from ((f"{name}.{key}", below) for key, below in value.items())


def _are_included(value: Any) -> bool:
    return isinstance(value, list) and all(name in (*_INCLUDED, LOGPROBS) for name in value)


def read_json(raw: bytes) -> Any:
    """The value of a body in UTF-8; raises `BadRequest` if it is not JSON.

    Halves of characters in escapes are replaced.
    """
    try:
        return clean_json(json.loads(raw.decode("utf-8-sig")))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error
