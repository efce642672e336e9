"""The tools of an MCP server as an environment of ours, whose actions are function calls.

MCP has no tasks and no rewards; a subclass adds them:

```python
class Calculator(McpTools):
    instruction = "Work out the task with the tools. Then write the number."
    tasks = TaskSet({"train": ["2 + 2", "3 * 5"]})
    server = ("python", "calculator_server.py")  # or "http://host:port/mcp"

    def _begin(self, task: str) -> str:
        return f"What is {task}?"

    def _answered(self, text: str) -> tuple[str, float]:
        return "Thank you.", float(text.strip() == self.solutions[self.task])
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from agentgym_adapters.function_calls import FunctionCall, how_to_call, read_call
from agentgym_adapters.mcp_client import McpConnection, RefusedCall, ToolResult
from agentgym_env.errors import BadRequest, EpisodeFailure
from agentgym_env.text_env import TextEnv
from agentgym_env.tools import ToolSpec, Verb

_ANSWER: Final = Verb("{text}", "Give the answer; it ends the episode.", "answer").spec


class McpTools(TextEnv):
    """Acts by calling tools: an action is `{"name": "add", "arguments": {"a": 1, "b": 2}}`.

    It may be in `<tool_call>` tags, as chat models write it. A text that is not a call is the
    policy's answer and ends the episode. A call that the server rejects, and a tool that reports an
    error (`isError`), are observations. A server that does not answer within `timeout_s` seconds,
    or breaks off, is lost (`EnvironmentLost`).

    Each episode has its own connection, and so its own session where the server has sessions.
    `hidden` are tools that the policy neither sees nor calls, such as a `reset`; `call_tool` calls
    them.
    """

    server: ClassVar[str | Sequence[str]] = ""
    """An address of streamable HTTP (`http://host:port/mcp`), or a command whose stdin and stdout
    speak MCP."""
    hidden: ClassVar[frozenset[str]] = frozenset()
    timeout_s: ClassVar[float] = 60.0
    # Each call waits for another program.
    isolated = True
    can_copy = False

    task: str
    """The episode's task."""

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        server: str | Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(render_mode)
        where = self.server if server is None else server
        if not where:
            raise BadRequest(
                f"{type(self).__name__} needs the address of an MCP server, or the command that "
                "starts it: server='http://host:port/mcp'"
            )
        self._where = where
        self._headers = dict(headers or {})
        self._connection: McpConnection | None = None
        self.tools = {tool.name: tool for tool in self._connected().tools}
        """The server's tools, by name."""
        shown = [tool.schema() for tool in self.tools.values() if tool.name not in self.hidden]
        self.instruction = f"{self.instruction}\n\n{how_to_call(shown)}"  # type: ignore[misc]

    def tool_specs(self) -> list[ToolSpec]:
        """The server's tools, and one for the answer in words that ends an episode."""
        shown = [tool for tool in self.tools.values() if tool.name not in self.hidden]
        found = [ToolSpec(tool.name, tool.description, dict(tool.parameters)) for tool in shown]
        return found if "answer" in self.tools else [*found, _ANSWER]

    def _begin(self, task: str) -> str:
        """The first observation. It may call tools, to set the server's state."""
        return task

    def _called(self, call: FunctionCall, result: ToolResult) -> tuple[float, bool]:
        """The reward of a call, and whether it ends the episode."""
        return 0.0, False

    def _answered(self, text: str) -> tuple[str, float]:
        """The last observation and the reward for an answer in words."""
        return "", 0.0

    def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Call a tool, hidden or not; raises `RefusedCall`, or a failure of the environment."""
        return self._connected().call(name, dict(arguments or {}))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """As `TextEnv.step`; a failure ends the episode."""
        try:
            return super().step(action)
        except EpisodeFailure:
            self._over = True
            raise

    def close(self) -> None:
        """Close the connection; a server that was started ends."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _reset(self, task: str) -> str:
        self.task = task
        if self._connection is not None and (self._connection.used or self._connection.lost):
            self.close()
        return self._begin(task)

    def _step(self, action: str) -> tuple[str, float, bool]:
        call = read_call(action)
        if isinstance(call, str):
            return call, 0.0, False
        if call is None:
            text, reward = self._answered(action)
            return text, reward, True
        if call.name not in self.tools or call.name in self.hidden:
            names = ", ".join(name for name in self.tools if name not in self.hidden)
            return f"There is no function {call.name[:100]!r}; there are {names}.", 0.0, False
        try:
            result = self.call_tool(call.name, call.arguments)
        except RefusedCall as refused:
            return str(refused), 0.0, False
        reward, ended = self._called(call, result)
        return result.text, reward, ended

    def _connected(self) -> McpConnection:
        if self._connection is None:
            self._connection = McpConnection(self._where, self._headers, self.timeout_s)
        return self._connection
