"""The servers a client may use: where new sessions go, and which servers are out."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from agentgym_env.errors import BadRequest
from agentgym_env.wire import MAX_ITEMS


class Addressed(Protocol):
    """A transport, as far as a pool looks at it."""

    address: str


T = TypeVar("T")
A = TypeVar("A", bound=Addressed)

_COOL_DOWN_S = 5.0


@dataclass(slots=True, eq=False)
class Server(Generic[T]):
    """One address and how it is doing."""

    address: str
    transport: T
    open_sessions: int = 0
    max_items: int = MAX_ITEMS
    """Maximum items of one call, as its card states."""
    out_until: float = 0.0
    """Monotonic time until which new sessions go elsewhere."""

    @property
    def is_out(self) -> bool:
        """Whether it failed a short while ago."""
        return time.monotonic() < self.out_until

    def rest(self) -> None:
        """It gave no answer: leave it alone for a while."""
        self.out_until = time.monotonic() + _COOL_DOWN_S


class ServerPool(Generic[T]):
    """Spreads sessions over servers by fewest open; one that is out is the last resort."""

    def __init__(self, servers: Sequence[Server[T]]) -> None:
        if not servers:
            raise BadRequest("a client needs at least one server's address, got none")
        self.servers = list(servers)

    def in_order(self) -> list[Server[T]]:
        """Every server, the best choice first."""
        return sorted(self.servers, key=lambda s: (s.is_out, s.open_sessions))

    def spread(
        self, count: int, without: Collection[Server[T]] = ()
    ) -> list[tuple[Server[T], int]]:
        """How many of `count` new sessions go to which server; empty if none is left."""
        usable = [server for server in self.in_order() if server not in without]
        chosen = [server for server in usable if not server.is_out] or usable[:1]
        shares = dict.fromkeys(chosen, 0)
        for _ in range(count if chosen else 0):
            least = min(chosen, key=lambda server: server.open_sessions + shares[server])
            shares[least] += 1
        return [(server, share) for server, share in shares.items() if share]


def pool_of(servers: str | Sequence[str] | A, connect: Callable[[str], A]) -> ServerPool[A]:
    """The pool of one address, of several, or of a transport that is there already."""
    if isinstance(servers, str):
        servers = [servers]
    transports = [connect(a) for a in servers] if isinstance(servers, Sequence) else [servers]
    return ServerPool([Server(transport.address, transport) for transport in transports])
