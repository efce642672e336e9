"""The interface between a foreign protocol and the server; knows nothing about sockets.

A protocol reads requests and writes responses. Sessions, limits, deadlines and counting stay with
the server, which passes a `Served` in and carries the bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentgym_env.wire import EnvCard, ResetReply, StepReply, TaskList


class Refused(Exception):
    """The server rejected a request; `code` is one of `agentgym_env.wire.ErrorCode`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Served(Protocol):
    """An environment behind a server: sessions by name, one request at a time.

    Every coroutine raises `Refused`.
    """

    def card(self) -> EnvCard:
        """What is served."""
        ...

    def task_list(self, split: str) -> TaskList:
        """The tasks of one split; raises `UnknownSplit`."""
        ...

    async def sessions(self) -> int:
        """How many sessions are open now."""
        ...

    async def open(self) -> str:
        """Open a session; its name."""
        ...

    async def reset(
        self, session: str, seed: int | None, task: str | None, split: str | None
    ) -> ResetReply:
        """Start an episode."""
        ...

    async def step(self, session: str, turn: int, action: str) -> StepReply:
        """Take the episode's turn of that number, counted from 1."""
        ...

    async def actions(self, session: str) -> list[str] | None:
        """The available actions of the next turn; None if the environment does not list them."""
        ...

    async def close(self, session: str) -> None:
        """End a session; one that has ended already is ignored."""
        ...


class ServedEpisode:
    """One session and its current turn, for protocols that do not number turns."""

    def __init__(self, served: Served, session: str) -> None:
        self._served = served
        self.session = session
        self.turn = 0
        """Turns taken since the last reset."""
        self.over = True
        """Whether the next call has to be a reset."""

    @classmethod
    async def open(cls, served: Served) -> ServedEpisode:
        """Open a session."""
        return cls(served, await served.open())

    async def reset(
        self, seed: int | None = None, task: str | None = None, split: str | None = None
    ) -> ResetReply:
        """Start an episode, in a new session if this one ended while it was idle."""
        try:
            reply = await self._served.reset(self.session, seed, task, split)
        except Refused as refused:
            if refused.code != "unknown_session":
                raise
            # Nothing is lost: an episode begins here.
            self.session = await self._served.open()
            reply = await self._served.reset(self.session, seed, task, split)
        self.turn, self.over = 0, False
        return reply

    async def step(self, action: str) -> StepReply:
        """Take the next turn."""
        if self.over:
            raise Refused("episode_over", "no episode is in progress; reset before stepping")
        try:
            reply = await self._served.step(self.session, self.turn + 1, action)
        except Refused as refused:
            # The world has failed: the episode cannot continue.
            self.over = refused.code in ("environment_error", "deadline")
            raise
        self.turn += 1
        self.over = reply.terminated or reply.truncated
        return reply

    async def actions(self) -> list[str] | None:
        """The available actions of the next turn; None if the environment does not list them."""
        return await self._served.actions(self.session)

    async def close(self) -> None:
        """End the session."""
        self.over = True
        await self._served.close(self.session)


Undo = Callable[[], Awaitable[None]]
"""Takes back what a request has done, unless a later one has used it."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request that passed the server's checks."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    """By lower-case name."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The response: a body to be written as JSON, or none."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    if_unread: Undo | None = None
    """Called when the client is gone before it has read the response: nobody else knows the name
    of a session that it opened."""


class HttpProtocol(Protocol):
    """The part of a foreign protocol that is made of HTTP requests."""

    def route(self, path: str) -> str:
        """The name under which a path is counted: its own, or `unknown` for any other path."""
        ...

    async def answer(self, request: HttpRequest) -> Reply:
        """Answer a request. Never raises: every request gets a response."""
        ...


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send, if any, and whether the connection closes after it."""

    text: str | None = None
    closes: bool = False


class Connection(Protocol):
    """A foreign protocol on one WebSocket."""

    async def on_open(self) -> Outgoing:
        """Called once, before the first message."""
        ...

    async def on_message(self, text: str) -> Outgoing:
        """Answer a message. Never raises."""
        ...

    async def on_idle(self) -> Outgoing:
        """Called when no message came for as long as a session may be idle."""
        ...

    async def on_close(self) -> None:
        """Called when the connection is closed, by either side."""
        ...
