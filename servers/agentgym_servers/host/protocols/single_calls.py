"""One request at a time to a service that takes batches, for other protocols."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from agentgym_adapters.served import Refused
from agentgym_env.wire import (
    JSON,
    CreateRequest,
    EnvCard,
    ResetReply,
    ResetRequest,
    SessionRequest,
    StepReply,
    StepRequest,
    TaskList,
)
from agentgym_servers.host import routes
from agentgym_servers.host.app import Service
from agentgym_servers.host.codec import encode_replies
from agentgym_servers.host.metrics import count


class SingleCalls:
    """An `agentgym_adapters.served.Served`, counted as the calls of our own protocol are."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def card(self) -> EnvCard:
        """What is served."""
        return self._service.codec.session_store.card()

    def task_list(self, split: str) -> TaskList:
        """The tasks of one split; raises `UnknownSplit`."""
        return self._service.codec.session_store.task_list(split)

    async def sessions(self) -> int:
        """How many sessions are open now."""
        return (await self._service.figures()).sessions

    async def open(self) -> str:
        """Open a session; its name."""
        created = await self.ask(routes.SESSIONS, CreateRequest())
        return str(created.session)

    async def reset(
        self, session: str, seed: int | None, task: str | None, split: str | None
    ) -> ResetReply:
        """Start an episode."""
        reply: ResetReply = await self._ask_world(
            routes.RESET, ResetRequest(session, seed, task, split)
        )
        return reply

    async def step(self, session: str, turn: int, action: str) -> StepReply:
        """Take the episode's turn of that number."""
        reply: StepReply = await self._ask_world(routes.STEP, StepRequest(session, turn, action))
        return reply

    async def actions(self, session: str) -> list[str] | None:
        """What can be done in the next turn."""
        reply = await self.ask(routes.ACTIONS, SessionRequest(session))
        actions: list[str] | None = reply.actions
        return actions

    async def close(self, session: str) -> None:
        """End a session."""
        await self.ask(routes.CLOSE, SessionRequest(session))

    async def ask(self, route: routes.Route, request: Any) -> Any:
        """The reply to one request; raises `Refused`."""
        (reply,) = await self._service.ask(route.path, [request])
        return self._counted(route, reply)

    async def _ask_world(self, route: routes.Route, request: Any) -> Any:
        """The reply of an environment, whose info must be serializable."""
        replies = await self._service.ask(route.path, [request])
        (reply,), _ = encode_replies(replies, JSON, self._service.codec.session_store)
        return self._counted(route, reply)

    def _counted(self, route: routes.Route, reply: Any) -> Any:
        figures = self._service.codec.figures
        count(figures.items, route.path)
        error = getattr(reply, "error", UNSET)
        if error is UNSET:
            return reply
        count(figures.errors, error.code)
        raise Refused(error.code, error.message)
