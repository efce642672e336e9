"""The bearer token of environment servers: an argument, a file, or the variable `AGENTGYM_TOKEN`.

An argument comes first, then a file, then the variable. A token is sent only to the addresses that
the user names, never to a local server or to where a server redirects.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agentgym_env.errors import BadRequest, ConfigError

TOKEN_VARIABLE: Final = "AGENTGYM_TOKEN"
"""The environment variable that clients read if they are given no token."""
NO_TOKEN: Final = ""
"""Sends no token, whatever the environment variable contains."""


def resolve_token(token: str | None) -> str | None:
    """The token that a client sends: `token`, or that of `AGENTGYM_TOKEN` if it is None.

    Raises `BadRequest` for text that is not valid in an HTTP header; it never names the token.
    """
    source = "token=" if token is not None else TOKEN_VARIABLE
    found = (os.environ.get(TOKEN_VARIABLE, "") if token is None else token).strip()
    if not _is_valid(found):
        raise BadRequest(f"{source} must be one line of printable ASCII")
    return found or None


def read_token_file(path: str | Path) -> str:
    """The token in a file; raises `ConfigError` if it cannot be read or contains none."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        token = "\0"
    if not token:
        raise ConfigError(f"the token file {path} is empty; write the server's token into it")
    if not _is_valid(token):
        raise ConfigError(f"the token file {path} must contain one line of printable ASCII")
    return token


def token_of_file(path: str | Path | None) -> str | None:
    """The token in a file; None without a file, so that clients use the variable."""
    return None if path is None else read_token_file(path)


def _is_valid(token: str) -> bool:
    return token.isascii() and token.isprintable()
