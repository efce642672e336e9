"""WebArena-Verified's deterministic evaluation of tasks of our own, where its package is installed.

It judges the agent's closing JSON and the requests that were sent, and neither pages nor texts.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from agentgym_env.errors import AgentGymError, MissingExtra
from agentgym_servers.web.har import Exchange, har_entries
from agentgym_servers.web.site_map import SiteMap
from agentgym_servers.web.tasks import WebTask

Status = Literal[
    "SUCCESS",
    "ACTION_NOT_ALLOWED_ERROR",
    "PERMISSION_DENIED_ERROR",
    "NOT_FOUND_ERROR",
    "DATA_VALIDATION_ERROR",
    "UNKNOWN_ERROR",
]
_NO_DATA: Final = {"type": "null"}


class Expected(msgspec.Struct, frozen=True):
    """What a task asks of the agent's closing JSON, and of the requests that it sent."""

    task_type: Literal["retrieve", "mutate", "navigate"]
    retrieved: Sequence[str | int | float] | None = None
    """Texts or numbers, of one kind; None where nothing is asked."""
    status: Status = "SUCCESS"
    ordered: bool = False
    requests: Sequence[Mapping[str, Any]] = ()
    """Each as `NetworkEventEvaluator.expected` has it: url, http_method, post_data and so on.

    A form that leads elsewhere needs its `response_status` too: without it 200 is asked for.
    """


def verified_task(task: WebTask, expected: Expected) -> dict[str, Any]:
    """A task in WebArena-Verified's format, placeholders and all."""
    schema: dict[str, Any] = _NO_DATA
    if expected.retrieved is not None:
        kind = "string" if all(isinstance(one, str) for one in expected.retrieved) else "number"
        schema = {"type": "array", "items": {"type": kind}}
    answer: dict[str, Any] = {
        "evaluator": "AgentResponseEvaluator",
        "ordered": expected.ordered,
        "results_schema": schema,
        "expected": {
            "task_type": expected.task_type,
            "status": expected.status,
            "retrieved_data": None if expected.retrieved is None else list(expected.retrieved),
        },
    }
    requests = [
        {"evaluator": "NetworkEventEvaluator", "expected": dict(one)} for one in expected.requests
    ]
    return {
        "sites": list(task.sites),
        "task_id": task.task_id,
        "intent_template_id": task.intent_template_id,
        "start_urls": list(task.start_urls),
        "intent": task.intent,
        "intent_template": task.intent_template,
        "instantiation_dict": dict(task.instantiation_dict),
        "revision": 1,
        "eval": [answer, *requests],
    }


def verify(
    verified: Mapping[str, Any], answer: str, exchanges: Sequence[Exchange], sites: SiteMap
) -> float:
    """The package's score, 0.0 or 1.0, of an answer and the requests of an episode."""
    tasks, config, evaluator = _package()
    task = tasks.WebArenaVerifiedTask.model_validate(dict(verified))
    environments = {f"__{site.upper()}__": {"urls": [base]} for site, base in sites.bases.items()}
    judge = evaluator.WebArenaVerifiedEvaluator(
        config=config.WebArenaVerifiedConfig(environments=environments), reader=_OneTask(task)
    )
    result = judge.evaluate_task(
        task_id=task.task_id, agent_response=answer, network_trace=har_entries(exchanges)
    )
    errors = [one.error_msg for one in (result, *result.evaluators_results) if one.error_msg]
    if errors:
        raise AgentGymError(f"WebArena-Verified gave no verdict: {errors[0]}")
    return float(result.score)


class _OneTask:
    """Where the package looks a task up."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.dataset_checksum = ""

    def get_task_by_id(self, task_id: int) -> Any:
        return self._task


def _package() -> tuple[Any, Any, Any]:
    try:
        tasks = importlib.import_module("webarena_verified.types.task")
        config = importlib.import_module("webarena_verified.types.config")
        evaluator = importlib.import_module("webarena_verified.api.internal.evaluator")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"WebArena-Verified needs {error.name}: pip install webarena-verified"
        ) from error
    return tasks, config, evaluator
