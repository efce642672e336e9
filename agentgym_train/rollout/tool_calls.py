"""The action format `tools`: a response calls an environment's tools, and its calls are actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentgym_env.actions import UNFINISHED, ActionError
from agentgym_env.errors import ConfigError
from agentgym_env.reasoning import reply_of
from agentgym_env.tools import ACT, BadArguments, ToolSpec, call_of
from agentgym_train.rollout.tool_syntaxes import (
    MAX_CALLS,
    BadCall,
    Parse,
    WrittenCall,
    typed_arguments,
)


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a response: the action that it stands for, or why it has none."""

    name: str
    action: str | None
    problem: str = ""


class ToolCalls(str):
    """The actions of a response, one per line, and all its calls."""

    __slots__ = ("calls",)
    calls: tuple[PlannedCall, ...]

    @classmethod
    def from_calls(cls, calls: Sequence[PlannedCall]) -> ToolCalls:
        """The valid actions joined to a text, which is empty if there is none."""
        made = cls("\n".join(call.action for call in calls if call.action is not None))
        made.calls = tuple(calls)
        return made


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the policy is told about a call."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The action format `tools`: a response calls the environment's tools in the model's syntax."""

    tools: tuple[ToolSpec, ...]
    parse_calls: Parse
    write: Callable[[Sequence[WrittenCall]], str]
    """The text of a response with these calls, as the chat template renders them."""
    name: str = "tools"
    instructions: str = ""
    _by_name: dict[str, ToolSpec] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {tool.name: tool for tool in self.tools})

    def parse(self, text: str) -> str | ActionError:
        """`ToolCalls`; an error if there is no call."""
        reply = reply_of(text)
        if reply is None:
            return UNFINISHED
        found = self.parse_calls(reply)[:MAX_CALLS]
        if not found:
            return ActionError(f"There is no tool call. Call one of {', '.join(self._by_name)}.")
        return ToolCalls.from_calls([self._planned(call) for call in found])

    def _planned(self, call: WrittenCall | BadCall) -> PlannedCall:
        if isinstance(call, BadCall):
            return PlannedCall(self.tools[0].name, None, call.message)
        tool = self._by_name.get(call.name)
        if tool is None:
            names = ", ".join(self._by_name)
            problem = f"There is no tool {call.name[:80]!r}; call one of {names}."
            return PlannedCall(self.tools[0].name, None, problem)
        try:
            return PlannedCall(tool.name, tool.action(typed_arguments(call.arguments, tool)))
        except BadArguments as error:
            return PlannedCall(tool.name, None, str(error))

    def render(self, action: str, thought: str = "") -> str:
        """The response that takes an action; of several lines, a call each.

        Raises `ConfigError` if no tool gives the action.
        """
        calls = []
        for part in self._parts(action):
            found = call_of(self.tools, part)
            if found is None:
                raise ConfigError(
                    f"the action {part[:80]!r} is none of the tools {', '.join(self._by_name)}, so "
                    "it cannot be written as a tool call; use another action_format"
                )
            calls.append(WrittenCall(found[0].name, found[1]))
        return self.write(calls)

    def _parts(self, action: str) -> Sequence[str]:
        """The actions of a response: known ones, or the lines if each of them is an action."""
        if isinstance(action, ToolCalls):
            return [call.action for call in action.calls if call.action is not None] or [action]
        lines = [line for line in action.splitlines() if line.strip()]
        # A tool that takes any text says nothing about lines.
        several = len(lines) > 1 and self.tools != (ACT,)
        return lines if several and all(call_of(self.tools, line) for line in lines) else [action]
