"""The seam between a door, which speaks HTTP, and what stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentgym_servers.web.front.message import HttpReply, HttpRequest
from agentgym_servers.web.har import Exchange


class Gate(Protocol):
    """Decides where a request goes, and brings the answer. Everything not allowed is `Refused`."""

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """What was asked and answered so far; empty where nothing is recorded."""
        ...

    async def answer(self, request: HttpRequest) -> HttpReply:
        """Answer any request but CONNECT; called in the front's thread, which must not wait."""
        ...

    def tunnel_to(self, target: str) -> tuple[str, int]:
        """The host and port that CONNECT to a target leads to."""
        ...


class LocalSite(Protocol):
    """A site that answers at once, within this process."""

    def answer(self, request: HttpRequest) -> HttpReply:
        """Answer a request whose target is of this host, such as `/p/4?x=1`."""
        ...
