"""NeMo Gym's messages: rows of a dataset, a model's responses, and what is answered to them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from agentgym_adapters.validation import convert, invalid_message
from agentgym_env.actions import FORMATS, ActionError
from agentgym_env.wire import MAX_SEED, StepReply

TOOL: Final = "act"
"""The function by which a model may act, where the row's `tools` name it."""
_MAX_CALLS: Final = 1_000
"""Each call is answered, and the last answer of an episode is kept."""


class Unread(Struct):
    """An object of which nothing is kept."""


class Row(Struct):
    """The fields of a dataset row that describe its episode; NeMo Gym uses the others."""

    responses_create_params: Unread
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    task: str | None = None
    split: str | None = None
    action_format: str = "plain"
    """How the model writes its actions: `plain`, `react` or `act`."""


class StepBody(Struct):
    """The body of `/step`: the row again, and the response of the model."""

    responses_create_params: Unread
    response: Response
    request_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = msgspec.field(
        name="_ng_step_request_id", default=None
    )


class Response(Struct):
    """A response of OpenAI's API, as far as it is read."""

    output: list[dict[str, Any]]


class MetricsBody(Struct):
    """The body of `/aggregate_metrics`."""

    verify_responses: list[dict[str, Any]]


def read_row(given: Any) -> Row:
    """A row; raises `InvalidMessage`. Its episode may be described in `verifier_metadata`."""
    inner = given.get("verifier_metadata") if isinstance(given, dict) else None
    row = convert({**inner, **given} if isinstance(inner, dict) else given, Row, "body")
    index = given.get("_ng_task_index")
    if row.seed is None and isinstance(index, int) and 0 <= index <= MAX_SEED:
        # The rollouts of one row are a group: they begin alike.
        return msgspec.structs.replace(row, seed=index)
    return row


def output_text(response: Response) -> str:
    """What the model wrote, without its reasoning."""
    return "".join(
        part if isinstance(part, str) else part.get("text", "")
        for item in response.output
        if item.get("type", "message") == "message"
        for part in _parts(item.get("content"))
        if isinstance(part, str) or part.get("type") == "output_text"
    )


def function_calls(response: Response) -> list[dict[str, Any]]:
    """The functions that the model called; raises `InvalidMessage` where they are too many."""
    calls = [item for item in response.output if item.get("type") == "function_call"]
    if len(calls) > _MAX_CALLS:
        text = f"a response has at most {_MAX_CALLS} function calls, got {len(calls)}"
        raise invalid_message("too_long", ["body", "response", "output"], text)
    return calls


def called_action(call: Mapping[str, Any]) -> str | ActionError:
    """The action of a call."""
    if call.get("name") != TOOL:
        return ActionError(f"There is no function {str(call.get('name'))[:100]!r}; call {TOOL!r}.")
    try:
        arguments = json.loads(call.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError):
        arguments = None
    action = arguments.get("action") if isinstance(arguments, dict) else None
    if not isinstance(action, str):
        return ActionError(f'{TOOL!r} takes one argument: {{"action": "a text"}}.')
    return action


def step_content(
    text: str, call_ids: Sequence[str], reply: StepReply | None = None
) -> dict[str, Any]:
    """The answer to a step; without a reply, the world did not move.

    Where functions were called, each gets its output, as the Responses API wants it. `call_ids`
    name the calls.
    """
    taken = reply or StepReply(observation=text)
    ended = taken.terminated or taken.truncated
    info = dict(taken.info)
    if call_ids:
        rest = "Not done: one action is taken a turn, and this was not the first."
        outputs = (text if i == 0 else rest for i in range(len(call_ids)))
        info["tool_outputs"] = [
            {"call_id": call_id, "output": output}
            for call_id, output in zip(call_ids, outputs, strict=True)
        ]
    return {
        "observation": None if call_ids and not ended else text, "reward": taken.reward,
        "terminated": taken.terminated, "truncated": taken.truncated, "info": info,
    }  # fmt: skip


def error_body(code: str, message: str) -> dict[str, Any]:
    """An error as FastAPI writes it, with our own code beside."""
    return {"detail": message, "code": code}


def aggregate(body: MetricsBody) -> dict[str, Any]:
    """Mean rewards, over all rollouts that count and by task."""
    rewards: dict[int, list[float]] = {}
    masked = 0
    for rollout in body.verify_responses:
        reward = rollout.get("reward")
        if rollout.get("mask_sample") is True or not isinstance(reward, int | float):
            masked += 1
            continue
        index = rollout.get("_ng_task_index")
        rewards.setdefault(index if isinstance(index, int) else 0, []).append(float(reward))
    every = [reward for group in rewards.values() for reward in group]
    overall = {"mean/reward": fmean(every)} if every else {}
    return {
        "group_level_metrics": [
            {"_ng_task_index": index, "mean/reward": fmean(group), "rollouts": len(group)}
            for index, group in sorted(rewards.items())
        ],
        "agent_metrics": {**overall, "rollouts": len(every), "masked": masked},
        "key_metrics": overall,
    }


def dataset_rows(
    instruction: str,
    starts: Iterable[tuple[str, int]],
    *,
    agent: str,
    action_format: str = "plain",
    tools: bool = False,
) -> Iterator[dict[str, Any]]:
    """The rows of a NeMo Gym dataset, one a start (task and seed), to be written as JSON lines.

    `agent` is the name of the `gymnasium_agent` in its config. With `tools` the model acts by
    calling a function.
    """
    how = "" if tools else FORMATS[action_format].instructions
    system = "\n\n".join(filter(None, [instruction, how]))
    params: dict[str, Any] = {"input": [{"role": "system", "content": system}]}
    if tools:
        params["tools"] = [TOOL_SCHEMA]
    for task, seed in starts:
        yield {
            "responses_create_params": params,
            "agent_ref": {"type": "responses_api_agents", "name": agent},
            "task": task,
            "seed": seed,
            "action_format": action_format,
        }


TOOL_SCHEMA: Final = {
    "type": "function",
    "name": TOOL,
    "description": "Take an action in the environment.",
    "parameters": {
        "type": "object",
        "properties": {"action": {"type": "string"}},
        "required": ["action"],
        "additionalProperties": False,
    },
    "strict": True,
}
"""The `tools` of a row."""


def _parts(content: Any) -> list[Any]:
    parts = [content] if isinstance(content, str) else content
    return [p for p in parts if isinstance(p, str | dict)] if isinstance(parts, list) else []
