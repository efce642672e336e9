"""Connections to vLLM servers, and what is known about each server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from agentgym_env.client.sockets import CONNECT_S, new_socket
from agentgym_env.errors import ConfigError

_KEPT_S = 2.0
"""Keep-alive of idle connections; vLLM's server closes them after 5 seconds."""


class Unreachable(Exception):
    """A server did not respond, or reported an internal error; another server may be used."""


class Broken(Unreachable):
    """A server responded with status 500 or above."""


class VLLMWire:
    """A connection pool for all servers of an engine."""

    def __init__(
        self, timeout_s: float, api_key: str | Callable[[], str | None] | None = None
    ) -> None:
        """A callable `api_key` is asked before each request: a fleet's key may change."""
        self._timeout_s = timeout_s
        self._api_key = api_key
        self._session: aiohttp.ClientSession | None = None

    async def call(self, address: str, path: str, body: Any = None) -> Any:
        """Send a POST with a body, or a GET without one, and return the JSON response.

        A response of another form is returned as a text.

        Raises `Unreachable` or `Broken`, and `ConfigError` if the server rejects the request.
        """
        try:
            try:
                status, text = await self._ask(address + path, body)
            except aiohttp.ClientOSError:
                # The server may have closed an idle connection just now: try a new one, once.
                status, text = await self._ask(address + path, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{address}: {type(error).__name__}: {error}") from error
        if status >= 500:
            raise Broken(f"{address}{path} failed with status {status}: {text[:300]}")
        if status >= 400:
            raise ConfigError(f"{address}{path} was rejected with status {status}: {text[:300]}")
        try:
            return msgspec.json.decode(text) if text else None
        except msgspec.DecodeError:
            return text

    async def _ask(self, url: str, body: Any) -> tuple[int, str]:
        method = "GET" if body is None else "POST"
        key = self._api_key() if callable(self._api_key) else self._api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self._open().request(method, url, json=body, headers=headers) as response:
            return response.status, await response.text()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        """The session, which is bound to the event loop of the first call."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_KEPT_S, socket_factory=new_socket
                ),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_S),
            )
        return self._session


@dataclass(slots=True, eq=False)
class Member:
    """One server."""

    address: str
    local: Any = None
    """The `LocalVLLM`, if this process started the server; it is restarted if it dies."""
    model: str = ""
    """The name of the served model; empty until the server is checked."""
    in_flight: int = 0
    conversations: int = 0
    gone: str | None = None
    """Why the server is currently unavailable; None if it is available."""
    updating: asyncio.Lock = field(default_factory=asyncio.Lock)
