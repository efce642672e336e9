"""One WebSocket to an OpenEnv server: a message goes out, its answer comes in."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final

import msgspec

from agentgym_env.errors import EnvironmentFault, EnvironmentLost, MissingExtra

try:
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ModuleNotFoundError as error:
    raise MissingExtra(
        "OpenEnv servers need websockets: pip install 'agentgym-sdk[openenv]'"
    ) from error

_CONNECT_S: Final = 10.0
_MOST_BYTES: Final = 100 * 2**20
_MAX_MESSAGE: Final = 500
_LOST: Final = frozenset({"CAPACITY_REACHED", "SESSION_ERROR", "INVALID_JSON", "UNKNOWN_TYPE"})


class Rejected(Exception):
    """The server does not take the message as it is written."""


class OpenEnvSocket:
    """Connects when there is something to ask, and again after it was lost."""

    def __init__(self, address: str, token: str | None, timeout_s: float) -> None:
        self._address = address
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s
        self._connection: ClientConnection | None = None
        self._stack = ExitStack()

    def ask(self, message: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """The data of the answer, which has to be of that kind.

        Raises `Rejected`, `EnvironmentFault` or `EnvironmentLost`.
        """
        try:
            received = self._exchange(msgspec.json.encode(message).decode())
        except (WebSocketException, OSError) as error:
            # After a timeout too: a late answer must not be taken for the next one's.
            self._drop()
            text = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
            raise EnvironmentLost(
                f"{self._address} gave no answer ({text})", "transport"
            ) from error
        try:
            answer = msgspec.json.decode(received)
        except msgspec.DecodeError as error:
            raise self.unexpected("a message", received) from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            raise self.unexpected("a message", answer)
        if answer.get("type") == "error":
            raise self._failure(data)
        if answer.get("type") != kind:
            raise self.unexpected("the type of a message", answer.get("type"))
        return data

    def close(self) -> None:
        """Take leave and hang up."""
        if self._connection is not None:
            # A server that is gone has no session to end.
            with suppress(WebSocketException, OSError):
                self._connection.send('{"type": "close"}')
            self._drop()

    def unexpected(self, what: str, value: Any) -> EnvironmentLost:
        """The error of an answer that an OpenEnv server would not give; the connection is over."""
        self._drop()
        return EnvironmentLost(
            f"{self._address} does not answer as an OpenEnv server does: {what} is "
            f"{repr(value)[:_MAX_MESSAGE]}; check the address",
            "protocol",
        )

    def _exchange(self, text: str) -> str | bytes:
        if self._connection is None:
            opening = connect(
                f"{self._address}/ws",
                open_timeout=min(_CONNECT_S, self._timeout_s),
                close_timeout=1.0,
                additional_headers=self._headers,
                max_size=_MOST_BYTES,
                proxy=None,
            )
            self._connection = self._stack.enter_context(opening)
        # A server that has no room says so before it hangs up: that is worth reading.
        with suppress(WebSocketException):
            self._connection.send(text)
        received: str | bytes = self._connection.recv(timeout=self._timeout_s)
        return received

    def _failure(self, data: Mapping[str, Any]) -> Exception:
        """The exception for an error. OpenEnv has no code for the environment's own errors."""
        code, text = str(data.get("code", "")), str(data.get("message", ""))[:_MAX_MESSAGE]
        errors = data.get("errors")
        if code == "VALIDATION_ERROR":
            return Rejected(f"{text}: {str(errors)[:_MAX_MESSAGE]}" if errors else text)
        where = f"{text} ({code} at {self._address})"
        if code in _LOST:
            self._drop()
            return EnvironmentLost(where, code.lower())
        if code == "FACTORY_ERROR":
            self._drop()
        return EnvironmentFault(where, "environment_error")

    def _drop(self) -> None:
        self._connection = None
        self._stack.close()
