"""ToolEnv: an environment whose actions are calls of its methods."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import msgspec
from msgspec import Struct

from agentgym_env.text_env import TextEnv
from agentgym_env.tools import ToolCall, ToolSpec

_F = TypeVar("_F", bound=Callable[..., Any])
_MARK: Final = "_agentgym_tool"


def tool(method: _F) -> _F:
    """Mark a method of a `ToolEnv` as a tool; its signature and docstring describe it."""
    setattr(method, _MARK, True)
    return method


ToolResult = str | tuple[str, float, bool]
"""What a tool returns: an observation, or also the reward and whether the episode ended."""


class ToolEnv(TextEnv):
    """A text environment whose actions are calls of its methods.

    ```python
    class Safe(ToolEnv):
        instruction = "Open the safe."
        tasks = TaskSet({"train": ["17", "42"]})

        def _reset(self, task: str) -> str:
            return "The safe has a dial from 0 to 99."

        @tool
        def turn(self, number: int) -> ToolResult:
            \"\"\"Turn the dial to a number.\"\"\"
            opened = str(number) == self.task
            return ("It opens." if opened else "Nothing happens."), float(opened), opened
    ```

    An action is a call in JSON: `{"name": "turn", "arguments": {"number": 42}}`. Arguments are
    checked against the signature. A wrong call is answered by an observation.
    """

    _tools: ClassVar[Mapping[str, _Method]]

    def __init_subclass__(cls, **options: Any) -> None:
        """Read the signatures of the tools; raises `TypeError` for one that cannot be a tool."""
        super().__init_subclass__(**options)
        for name, member in vars(cls).items():
            if isinstance(member, staticmethod | classmethod) and any(
                getattr(each, _MARK, False) for each in (member, member.__func__)
            ):
                raise TypeError(f"the tool {name} is no method of an environment; give it `self`")
        cls._tools = {
            name: _Method.from_function(name, member)
            for name, member in inspect.getmembers(cls, inspect.isfunction)
            if getattr(member, _MARK, False)
        }

    def tool_specs(self) -> list[ToolSpec]:
        """The tools, in the order of their names."""
        return [method.spec for method in self._tools.values()]

    def _step(self, action: str) -> tuple[str, float, bool]:
        self._rejected = True
        names = ", ".join(self._tools)
        call = ToolCall.read(action)
        if call is None:
            form = '{"name": NAME, "arguments": {...}}'
            return f"Call one of the tools: {names}. The form is {form}.", 0.0, False
        if call.name not in self._tools:
            return f"There is no tool {call.name[:80]!r}; call one of {names}.", 0.0, False
        method = self._tools[call.name]
        try:
            arguments = msgspec.convert(call.arguments, method.arguments)
        except msgspec.ValidationError as error:
            return f"The arguments of {call.name} are invalid: {error}.", 0.0, False
        self._rejected = False
        values = {name: getattr(arguments, name) for name in method.arguments.__struct_fields__}
        result = getattr(self, call.name)(**values)
        if isinstance(result, str):
            return result, 0.0, False
        if not isinstance(result, tuple) or len(result) != 3:
            raise TypeError(
                f"the tool {call.name} returned {result!r}; return an observation, or "
                "(observation, reward, ended)"
            )
        return result

    def invalid_action(self) -> bool | None:
        """Whether the last action was no valid call."""
        return self._rejected

    @property
    def task(self) -> str:
        """The id of the episode's task."""
        return self._task or ""


@dataclass(frozen=True, slots=True)
class _Method:
    """A tool of a `ToolEnv`."""

    spec: ToolSpec
    arguments: type[Struct]

    @classmethod
    def from_function(cls, name: str, function: Callable[..., Any]) -> _Method:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(f"the tool {name} must be a plain method, not async or a generator")
        hints = typing.get_type_hints(function, include_extras=True)
        if hints.get("return") is type(None):
            raise TypeError(f"the tool {name} returns None; return an observation")
        own = list(inspect.signature(function).parameters.values())
        if not own:
            raise TypeError(f"the tool {name} is no method of an environment; give it `self`")
        parameters = own[1:]
        fields: list[Any] = []
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"the tool {name} has *{parameter.name}; name its arguments")
            if parameter.name not in hints:
                raise TypeError(f"the argument {parameter.name} of the tool {name} has no type")
            field = (parameter.name, hints[parameter.name])
            has_default = parameter.default is not parameter.empty
            fields.append((*field, parameter.default) if has_default else field)
        kind = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        try:
            schema = msgspec.json.schema(kind)
        except TypeError as error:
            reason = str(error).splitlines()[-1]
            raise TypeError(
                f"the arguments of the tool {name} have no JSON schema: {reason}; use str, int, "
                "float, bool, list, dict, Literal, an enum or a dataclass"
            ) from error
        defined = schema["$defs"]
        parameters_of = dict(defined.pop(name))
        parameters_of.pop("title", None)
        if defined:
            parameters_of["$defs"] = defined
        described = inspect.getdoc(function) or ""
        return cls(ToolSpec(name, described, parameters_of), kind)
