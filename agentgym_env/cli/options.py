"""Options that several commands share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from agentgym_env.errors import BadRequest

EnvId = Annotated[str, typer.Argument(help="Environment id, short name or module:Class.")]
EnvKwargs = Annotated[
    str, typer.Option(help="Keyword arguments of the environment, as a JSON object.")
]
Server = Annotated[
    str,
    typer.Option(help="Address of a running server, or `inprocess` to use no server."),
]


def json_object(option: str, text: str) -> dict[str, Any]:
    """The JSON object in the value of an option; raises `BadRequest` with the option's name."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRequest(f"{option} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest(f"{option} must be a JSON object, got {text}")
    return value
