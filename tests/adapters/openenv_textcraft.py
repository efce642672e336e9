"""TextCraft as an OpenEnv server of somebody else: written on the base classes of their package."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from agentgym_servers.worlds.textcraft.env import TextCraft

FIRST = 7
"""The seed of the first task: that of the first episode on the native road."""


class CraftAction(Action):
    """A command."""

    command: str = Field(min_length=1)


class CraftObservation(Observation):
    """What is seen."""

    prompt: str = ""


class CraftEnvironment(Environment):
    """TextCraft; the seed chooses the task, as their environments do it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._world = TextCraft()
        self._tasks = self._world.tasks.split("test")
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> CraftObservation:
        """The task of number `seed`."""
        number = seed or 0
        task = self._tasks[(number - FIRST) % len(self._tasks)]
        text, _ = self._world.reset(seed=number, options={"task": task})
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return CraftObservation(prompt=text)

    def step(
        self, action: CraftAction, timeout_s: float | None = None, **kwargs: Any
    ) -> CraftObservation:
        """One command; `explode` is a fault of the world."""
        if action.command == "explode":
            raise RuntimeError("the table caught fire")
        text, reward, ended, _, _ = self._world.step(action.command)
        self._state.step_count += 1
        return CraftObservation(prompt=text, reward=reward, done=ended)

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._state


class EchoEnvironment(MCPEnvironment):
    """One whose actions are calls of tools."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("echo")

        @tools.tool
        def echo(message: str) -> str:
            """Say it again."""
            return message

        super().__init__(tools)
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> Observation:
        """There is nothing to see."""
        return Observation(done=False, reward=0.0)

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError("there are only tools")

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._state


def make_echo_app() -> Any:
    """The application whose actions are calls of tools."""
    return create_fastapi_app(
        EchoEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=2
    )


def make_app(most: int = 4) -> Any:
    """The application."""
    return create_fastapi_app(
        CraftEnvironment, CraftAction, CraftObservation, max_concurrent_envs=most
    )
