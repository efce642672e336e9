"""What an evaluator needs of a browser and of a site's REST interface; the backends bring it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from agentgym_env.errors import AgentGymError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


class ScriptError(AgentGymError):
    """A locator failed as it may on a wrong page, such as on an element that is not there."""


class UnsupportedLocator(AgentGymError, NotImplementedError):
    """A locator is beyond what a backend can evaluate; never a verdict."""


class Page(Protocol):
    """One page in its current state."""

    @property
    def url(self) -> str:
        """Its address."""
        ...

    def content(self) -> str:
        """Its HTML."""
        ...

    def evaluate(self, expression: str) -> JsonValue:
        """The value of a JavaScript expression; raises `ScriptError` or `UnsupportedLocator`."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Pages(Protocol):
    """The browser of one episode."""

    def current(self) -> Page:
        """The page the agent is on; the evaluator does not close it."""
        ...

    def open(self, url: str) -> Page:
        """Open an address in a new tab, with the agent's session, and wait for it."""
        ...


class Rest(Protocol):
    """A site's REST interface, as its administrator sees the data of this episode."""

    def get(self, site: str, path: str, query: Mapping[str, str]) -> JsonValue:
        """The JSON at a path of a site such as `shopping`; raises where there is none."""
        ...
