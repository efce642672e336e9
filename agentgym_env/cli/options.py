"""Values of command-line options that several commands take."""

from __future__ import annotations

import json
from typing import Any

from agentgym_env.errors import BadRequest


def json_object(option: str, text: str) -> dict[str, Any]:
    """The object that an option holds as JSON; raises `BadRequest` with the option's name."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRequest(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest(f"{option} is a JSON object, got {text}")
    return value
