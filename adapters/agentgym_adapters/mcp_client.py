"""A connection to an MCP server for blocking code.

The official SDK is asynchronous; its session runs in a separate thread. Versions 1.27 to 2.x work.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from agentgym_env.errors import AgentGymError, EnvironmentFault, EnvironmentLost, MissingExtra

try:
    import anyio
    import anyio.from_thread
    from mcp import ClientSession, StdioServerParameters, stdio_client
    from mcp.client import streamable_http
except ImportError as error:
    raise MissingExtra("MCP servers need mcp: pip install 'agentgym-sdk[mcp]'") from error

_MAX_MESSAGE: Final = 500
_INVALID_PARAMS: Final = -32602
_INTERNAL_ERROR: Final = -32603


class RefusedCall(Exception):
    """The server rejects the arguments of a call: a policy's error."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the server describes it."""

    name: str
    description: str
    parameters: dict[str, Any]

    def schema(self) -> dict[str, Any]:
        """The schema in the form of chat templates."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool."""

    text: str
    is_error: bool = False
    structured: Mapping[str, Any] = field(default_factory=dict)


class McpConnection(AbstractContextManager["McpConnection"]):
    """Connects at once; `close` it. A call blocks the calling thread only."""

    def __init__(
        self, server: str | Sequence[str], headers: Mapping[str, str], timeout_s: float
    ) -> None:
        self._name = server if isinstance(server, str) else " ".join(server)[:_MAX_MESSAGE]
        self._timeout_s = timeout_s
        self.used = False
        """Whether a tool was called."""
        self.lost = False
        """Whether the connection broke off."""
        self._stack = ExitStack()
        try:
            self._portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal())
            session = _session(server, headers, timeout_s)
            self._session = self._stack.enter_context(
                self._portal.wrap_async_context_manager(session)
            )
            self.tools = self._portal.call(self._list_tools)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception) and not isinstance(error, AgentGymError):
                raise self._loss(error) from error
            raise

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool; raises `RefusedCall`, `EnvironmentFault` or `EnvironmentLost`."""
        self.used = True
        try:
            return _result(self._portal.call(self._call, name, arguments))
        except Exception as error:
            # The SDK's errors differ in name between versions; all have a code.
            code, text = _code(error), str(error)[:_MAX_MESSAGE]
            if code == _INVALID_PARAMS:
                raise RefusedCall(text) from error
            if code == _INTERNAL_ERROR:
                raise EnvironmentFault(f"{text} (at {self._name})", "environment_error") from error
            raise self._loss(error) from error

    def close(self) -> None:
        """Close the connection."""
        stack, self._stack = self._stack, ExitStack()
        try:
            stack.close()
        except Exception:
            # The error of a broken connection was reported before.
            self.lost = True

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _list_tools(self) -> list[Tool]:
        with anyio.fail_after(self._timeout_s):
            listed = (await self._session.list_tools()).model_dump(mode="json", by_alias=True)
        return [
            Tool(row["name"], row.get("description") or "", row.get("inputSchema") or {})
            for row in listed["tools"]
        ]

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        with anyio.fail_after(self._timeout_s):
            result = await self._session.call_tool(name, arguments)
        return result.model_dump(mode="json", by_alias=True)

    def _loss(self, error: BaseException) -> EnvironmentLost:
        self.lost = True
        inner = error
        while isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        text = f"{type(inner).__name__}: {inner}"[:_MAX_MESSAGE]
        return EnvironmentLost(f"the MCP server {self._name} is gone ({text})", "transport")


@asynccontextmanager
async def _session(
    server: str | Sequence[str], headers: Mapping[str, str], timeout_s: float
) -> AsyncIterator[Any]:
    """An initialized session."""
    async with AsyncExitStack() as stack:
        if isinstance(server, str):
            client = await stack.enter_async_context(_http_client(headers, timeout_s))
            transport = streamable_http.streamable_http_client(server, http_client=client)
        else:
            command, *arguments = server
            transport = stdio_client(StdioServerParameters(command=command, args=arguments))
        streams = await stack.enter_async_context(transport)
        session = await stack.enter_async_context(ClientSession(*streams[:2]))
        with anyio.fail_after(timeout_s):
            await session.initialize()
        yield session


def _http_client(headers: Mapping[str, str], timeout_s: float) -> Any:
    """The HTTP client of the SDK's version: httpx2 since 2.0."""
    httpx = importlib.import_module("httpx2" if hasattr(streamable_http, "httpx2") else "httpx")
    return httpx.AsyncClient(headers=dict(headers), timeout=timeout_s, follow_redirects=True)


def _result(given: Mapping[str, Any]) -> ToolResult:
    texts = [
        part["text"] if part.get("type") == "text" else f"[{part.get('type')}]"
        for part in given.get("content") or []
    ]
    structured = given.get("structuredContent")
    return ToolResult(
        "\n".join(texts),
        given.get("isError") is True,
        structured if isinstance(structured, dict) else {},
    )


def _code(error: Exception) -> int | None:
    """The code of JSON-RPC that an error of the SDK carries, or None."""
    code = getattr(getattr(error, "error", None), "code", None)
    return code if isinstance(code, int) else None
