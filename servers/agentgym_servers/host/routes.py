"""The routes as data, and their OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from agentgym_env.wire import (
    JSON,
    MSGPACK,
    STATUS,
    ActionsReply,
    CloseReply,
    CreateReply,
    CreateRequest,
    EnvCard,
    ErrorBody,
    ErrorCode,
    ExpertReply,
    RenewReply,
    RenewRequest,
    ResetReply,
    ResetRequest,
    SessionRequest,
    StepReply,
    StepRequest,
    TaskList,
)


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path."""

    method: str
    path: str
    summary: str
    takes: Any = None
    """Type of the body, None for a GET."""
    gives: Any = None
    """Type of the answer, None for plain text or a free document."""
    codes: tuple[ErrorCode, ...] = ()
    """The errors it may answer, besides those of every route."""
    media: str = "application/json"


ON_EVERY_ROUTE: Final[tuple[ErrorCode, ...]] = (
    "unauthorized", "unknown_host", "foreign_origin", "too_large", "wrong_method",
)  # fmt: skip
"""The errors of every route; `/health` needs no token."""

ON_ROUTES_WITH_A_BODY: Final[tuple[ErrorCode, ...]] = ("unsupported_media_type", "too_many_items")
"""The errors of every route that takes a body."""

_WORLD: Final[tuple[ErrorCode, ...]] = (
    "bad_request", "unknown_session", "environment_error", "deadline", "shutting_down",
)  # fmt: skip

SESSIONS: Final = Route(
    "POST",
    "/v1/sessions",
    "Open sessions",
    list[CreateRequest],
    list[CreateReply],
    ("bad_request", "too_many_sessions", "environment_error", "deadline", "shutting_down"),
)

RESET: Final = Route(
    "POST",
    "/v1/reset",
    "Start an episode in each session",
    list[ResetRequest],
    list[ResetReply],
    (*_WORLD, "unknown_task", "unknown_split", "stale_turn"),
)

STEP: Final = Route(
    "POST",
    "/v1/step",
    "Take each session's next turn",
    list[StepRequest],
    list[StepReply],
    (*_WORLD, "stale_turn", "episode_over"),
)

CLOSE: Final = Route(
    "POST", "/v1/close", "End sessions", list[SessionRequest], list[CloseReply], ("bad_request",)
)

RENEW: Final = Route(
    "POST",
    "/v1/renew",
    "Renew sessions' leases",
    list[RenewRequest],
    list[RenewReply],
    ("bad_request",),
)

EXPERT: Final = Route(
    "POST",
    "/v1/expert",
    "The oracle's action for each session's next turn",
    list[SessionRequest],
    list[ExpertReply],
    (*_WORLD, "episode_over", "no_expert"),
)

ACTIONS: Final = Route(
    "POST",
    "/v1/actions",
    "What can be done in each session's next turn",
    list[SessionRequest],
    list[ActionsReply],
    (*_WORLD, "episode_over"),
)

ENV: Final = Route("GET", "/v1/env", "What is served here", gives=EnvCard)

TASKS: Final = Route(
    "GET",
    "/v1/tasks",
    "The tasks of one split",
    gives=TaskList,
    codes=("bad_request", "unknown_split"),
)

HEALTH: Final = Route("GET", "/health", "Whether the server is up; needs no token")

METRICS: Final = Route("GET", "/metrics", "Counters for Prometheus", media="text/plain")

OPENAPI: Final = Route("GET", "/openapi.json", "This description")

ROUTES: Final = (
    SESSIONS, RESET, STEP, CLOSE, RENEW, EXPERT, ACTIONS, ENV, TASKS, HEALTH, METRICS, OPENAPI,
)  # fmt: skip

METHOD_OF: Final = {route.path: route.method for route in ROUTES}
"""Each path takes one method."""


def openapi_document(card: EnvCard) -> dict[str, Any]:
    """The whole description of a server that serves `card`."""
    kinds = [kind for route in ROUTES for kind in (route.takes, route.gives) if kind is not None]
    kinds.append(ErrorBody)
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(map(str, kinds), schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in ROUTES:
        operation = _operation(route, schema_of, [*card.splits, *card.selections])
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": card.env,
            "version": card.version or "0",
            "description": card.instruction,
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schema_of: dict[str, Any], splits: list[str]) -> dict[str, Any]:
    answer = schema_of[str(route.gives)] if route.gives is not None else {}
    failed = _media(schema_of[str(ErrorBody)])
    responses: dict[str, Any] = {
        "200": {
            "description": "Done",
            "content": _media(answer) if route.gives else {route.media: {"schema": answer}},
        }
    }
    own = route.codes if route.takes is None else (*ON_ROUTES_WITH_A_BODY, *route.codes)
    codes = [c for c in (*ON_EVERY_ROUTE, *own) if (c, route) != ("unauthorized", HEALTH)]
    for status in sorted({STATUS[code] for code in codes}):
        # A batch in which every item failed comes back as the list, under the first item's status.
        either = {"anyOf": [schema_of[str(ErrorBody)], answer]} if route.takes else None
        content = _media(either) if either else failed
        responses[str(status)] = {"description": _named(codes, status), "content": content}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": (route.method + route.path).replace("/", "_").replace(".", "_").lower(),
        "responses": responses,
        "security": [{}] if route is HEALTH else [{}, {"token": []}],
    }
    if route.takes is not None:
        content = _media(schema_of[str(route.takes)])
        operation["requestBody"] = {"required": True, "content": content}
    if route is TASKS:
        operation["parameters"] = [
            {"name": "split", "in": "query", "required": True, "schema": {"enum": splits}}
        ]
    return operation


def _media(schema: dict[str, Any]) -> dict[str, Any]:
    return {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}


def _named(codes: list[ErrorCode], status: int) -> str:
    return ", ".join(code for code in codes if STATUS[code] == status)
