"""The OpenAPI description, made from the routes and the wire messages themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from agentgym_env.wire import JSON, MSGPACK, STATUS, EnvCard, ErrorBody, ErrorCode
from agentgym_servers.routes import AT_THE_DOOR, HEALTH, OF_BODIES, ROUTES, TASKS, Route


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
        operation = _operation(route, schema_of, list(card.splits))
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
    own = route.codes if route.takes is None else (*OF_BODIES, *route.codes)
    codes = [c for c in (*AT_THE_DOOR, *own) if (c, route) != ("unauthorized", HEALTH)]
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
