"""WebArena-Verified's deterministic evaluation of tasks of our own, where its package is installed.

It judges the agent's closing JSON and the requests that were sent, and neither pages nor texts.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from agentgym_env.errors import AgentGymError, MissingExtra
from agentgym_servers.web.chromium.interpreter import package_folder, web_environment, web_python
from agentgym_servers.web.sites.site import Request, Response
from agentgym_servers.web.sites.site_map import SiteMap
from agentgym_servers.web.tasks.tasks import WebTask

_FORM = "application/x-www-form-urlencoded"


class Exchange(msgspec.Struct, frozen=True):
    """A request and its answer."""

    request: Request
    response: Response
    referer: str = ""
    """The page that requested it."""


def url_of(request: Request) -> str:
    """The address of a request."""
    query = f"?{_encoded(request.query)}" if request.query else ""
    return f"http://{request.host}{quote(request.path)}{query}"


def har_entries(exchanges: Iterable[Exchange]) -> list[dict[str, Any]]:
    """One entry to an exchange, in order; times are left out, since none were measured."""
    return [_entry(one) for one in exchanges]


def _entry(exchange: Exchange) -> dict[str, Any]:
    request, response = exchange.request, exchange.response
    headers = {"Host": request.host, "Accept": "text/html", "Referer": exchange.referer}
    entry: dict[str, Any] = {
        "method": request.method,
        "url": url_of(request),
        "httpVersion": "HTTP/1.1",
        "headers": _pairs({name: text for name, text in headers.items() if text}),
        "queryString": _pairs_of_lists(request.query),
        "cookies": _pairs(request.cookies),
        "headersSize": -1,
        "bodySize": -1,
    }
    if request.method == "POST":
        entry["postData"] = {
            "mimeType": _FORM,
            "text": _encoded(request.form),
            "params": _pairs_of_lists(request.form),
        }
    return {
        "startedDateTime": "1970-01-01T00:00:00.000Z",
        "time": 0,
        "request": entry,
        "response": {
            "status": response.status,
            "statusText": "",
            "httpVersion": "HTTP/1.1",
            "headers": _pairs({"Content-Type": response.content_type}),
            "cookies": _pairs({name: text or "" for name, text in response.cookies.items()}),
            "content": {
                "size": len(response.body.encode()),
                "mimeType": response.content_type,
                "text": response.body,
            },
            "redirectURL": response.location or "",
            "headersSize": -1,
            "bodySize": -1,
        },
        "cache": {},
        "timings": {"send": 0, "wait": 0, "receive": 0},
    }


def _encoded(values: Mapping[str, Sequence[str]]) -> str:
    return urlencode({name: list(texts) for name, texts in values.items()}, doseq=True)


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": text} for name, text in values.items()]


def _pairs_of_lists(values: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": text} for name, texts in values.items() for text in texts]


Status = Literal[
    "SUCCESS",
    "ACTION_NOT_ALLOWED_ERROR",
    "PERMISSION_DENIED_ERROR",
    "NOT_FOUND_ERROR",
    "DATA_VALIDATION_ERROR",
    "UNKNOWN_ERROR",
]

_NO_DATA: Final = {"type": "null"}

_TIMEOUT_S: Final = 120.0


class Expected(msgspec.Struct, frozen=True):
    """What a task asks of the agent's closing JSON, and of the requests that it sent."""

    task_type: Literal["retrieve", "mutate", "navigate"]
    retrieved: Sequence[str | int | float] | None = None
    """Texts or numbers, of one kind; None where nothing is required."""
    status: Status = "SUCCESS"
    ordered: bool = False
    requests: Sequence[Mapping[str, Any]] = ()
    """Each as `NetworkEventEvaluator.expected` has it: url, http_method, post_data and so on.

    A form that leads elsewhere needs its `response_status` too: without it 200 is required.
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


def demonstrated(exchanges: Sequence[Exchange], answer: str) -> Expected:
    """What a solution did, as the task's requirements: forms sent, and the answer."""
    sent = [one for one in exchanges if one.request.method == "POST"]
    requests = [
        {
            "url": url_of(one.request),
            "http_method": "POST",
            "post_data": {name: texts[-1] for name, texts in one.request.form.items()},
            "response_status": one.response.status,
        }
        for one in sent
    ]
    if requests:
        return Expected("mutate", requests=requests)
    return Expected("retrieve", [answer]) if answer else Expected("navigate")


def verify(
    verified: Mapping[str, Any], answer: str, exchanges: Sequence[Exchange], sites: SiteMap
) -> float:
    """The package's score, 0.0 or 1.0, of an answer and the requests of an episode.

    Where the package is not installed here, it runs in the environment of `make setup-web`.
    """
    case = {
        "task": dict(verified),
        "answer": answer,
        "trace": har_entries(exchanges),
        "environments": {
            f"__{site.upper()}__": {"urls": [base]} for site, base in sites.bases.items()
        },
    }
    here = importlib.util.find_spec("webarena_verified") is not None
    judged = judge_case(case) if here else _judge_elsewhere(case)
    if judged["errors"]:
        raise AgentGymError(f"WebArena-Verified gave no verdict: {judged['errors'][0]}")
    return float(judged["score"])


def judge_case(case: Mapping[str, Any]) -> dict[str, Any]:
    """Judge a task, an answer and a trace by the package, which is installed here."""
    tasks = importlib.import_module("webarena_verified.types.task")
    config = importlib.import_module("webarena_verified.types.config")
    evaluator = importlib.import_module("webarena_verified.api.internal.evaluator")
    task = tasks.WebArenaVerifiedTask.model_validate(case["task"])
    judge = evaluator.WebArenaVerifiedEvaluator(
        config=config.WebArenaVerifiedConfig(environments=case["environments"]),
        reader=_OneTask(task),
    )
    result = judge.evaluate_task(
        task_id=task.task_id, agent_response=case["answer"], network_trace=case["trace"]
    )
    judged = (result, *result.evaluators_results)
    return {"score": result.score, "errors": [one.error_msg for one in judged if one.error_msg]}


def _judge_elsewhere(case: Mapping[str, Any]) -> Any:
    if package_folder("webarena_verified") is None:
        raise MissingExtra(
            "WebArena-Verified is not installed, neither here nor in the web environment: run "
            "`make setup-web`, or pip install 'agentgym-sdk[webarena-verified]'"
        )
    done = subprocess.run(
        [web_python(), "-P", "-m", "agentgym_servers.web.evaluation.verified"],
        input=msgspec.json.encode(case),
        env=web_environment(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return msgspec.json.decode(done.stdout)


class _OneTask:
    """Where the package looks a task up."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.dataset_checksum = ""

    def get_task_by_id(self, task_id: int) -> Any:
        return self._task


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(judge_case(json.load(sys.stdin))))
