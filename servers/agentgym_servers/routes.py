"""The routes as data: what each takes and gives; the host serves them, OpenAPI shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from agentgym_env.wire import (
    ActionsReply,
    CloseReply,
    CreateReply,
    CreateRequest,
    EnvCard,
    ErrorCode,
    ExpertReply,
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
    """The errors it may answer, beside those of the door."""
    media: str = "application/json"


AT_THE_DOOR: Final[tuple[ErrorCode, ...]] = (
    "unauthorized", "unknown_host", "foreign_origin", "too_large", "wrong_method",
)  # fmt: skip
"""The errors of every route; `/health` needs no token."""
OF_BODIES: Final[tuple[ErrorCode, ...]] = ("unsupported_media_type", "too_many_items")
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
    (*_WORLD, "unknown_task", "unknown_split"),
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
    SESSIONS, RESET, STEP, CLOSE, EXPERT, ACTIONS, ENV, TASKS, HEALTH, METRICS, OPENAPI,
)  # fmt: skip
METHOD_OF: Final = {route.path: route.method for route in ROUTES}
"""Each path takes one method."""
