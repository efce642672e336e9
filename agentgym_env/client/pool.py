"""The servers of a client: which of them get new sessions; does no input or output itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from agentgym_env.client.directory import directory_of
from agentgym_env.errors import BadRequest
from agentgym_env.wire import MAX_ITEMS

T = TypeVar("T")

_COOL_DOWN_S = 5.0


class Addressed(Protocol):
    """The part of a transport that a pool needs."""

    address: str


@dataclass(slots=True, eq=False)
class Server(Generic[T]):
    """One address and its state."""

    address: str
    transport: T
    open_sessions: int = 0
    max_items: int = MAX_ITEMS
    """Maximum items of one call, as its card states."""
    out_until: float = 0.0
    """Monotonic time until which no new sessions are opened here."""
    is_leaving: bool = False
    """Whether its directory lists it no longer: it gets no new sessions."""

    @property
    def is_out(self) -> bool:
        """Whether it failed recently."""
        return time.monotonic() < self.out_until

    def back_off(self) -> None:
        """Open no new sessions here for a while, since it did not answer."""
        self.out_until = time.monotonic() + _COOL_DOWN_S


A = TypeVar("A", bound=Addressed)


class ServerPool(Generic[A]):
    """Opens sessions on the server with the fewest; a failed one is the last choice.

    `servers` may be the address of a directory. Its servers come and go: one that it no longer
    lists gets no new sessions, and leaves the pool when it has none left.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | A,
        connect: Callable[[str, str | None], A],
        token: str | None = None,
    ) -> None:
        """`connect` makes the transport of an address and a token; None is the client's own."""
        self._directory = directory_of(servers, "env")
        given = self._directory.await_addresses() if self._directory else servers

        def connected(address: str) -> A:
            # A directory's servers may have another token after its fleet was started anew.
            listed = self._directory.token if self._directory and token is None else token
            return connect(address, listed)

        self._connect = connected
        self.left: list[Server[A]] = []
        """Servers that left; their transports are still to be closed."""
        self.servers = [Server(each.address, each) for each in self._transports(given)]
        if not self.servers:
            raise BadRequest("a client needs at least one server address, got none")

    def in_order(self) -> list[Server[A]]:
        """All servers, the best choice first."""
        self.follow()
        usable = [server for server in self.servers if not server.is_leaving]
        return sorted(usable or self.servers, key=lambda s: (s.is_out, s.open_sessions))

    def spread(
        self, count: int, without: Collection[Server[A]] = ()
    ) -> list[tuple[Server[A], int]]:
        """How many of `count` new sessions go to which server; empty if none is left."""
        usable = [server for server in self.in_order() if server not in without]
        chosen = [server for server in usable if not server.is_out] or usable[:1]
        shares = dict.fromkeys(chosen, 0)
        for _ in range(count if chosen else 0):
            least = min(chosen, key=lambda server: server.open_sessions + shares[server])
            shares[least] += 1
        return [(server, share) for server, share in shares.items() if share]

    def follow(self) -> None:
        """Take in the directory's new servers; forget those that left and hold no sessions."""
        if self._directory is None:
            return
        addresses = self._directory.addresses()
        known = {server.address for server in self.servers}
        for address in addresses:
            if address not in known:
                self.servers.append(Server(address, self._connect(address)))
        for server in self.servers:
            server.is_leaving = server.address not in addresses
        stays = [s for s in self.servers if not s.is_leaving or s.open_sessions > 0]
        if stays:
            self.left += [server for server in self.servers if server not in stays]
            self.servers = stays

    def _transports(self, servers: str | Sequence[str] | A) -> list[A]:
        if isinstance(servers, str):
            servers = [servers]
        if isinstance(servers, bytes) or not (
            isinstance(servers, Sequence) or hasattr(servers, "send")
        ):
            raise BadRequest(f"a server is an address or a list of addresses, got {servers!r}")
        return [self._connect(a) for a in servers] if isinstance(servers, Sequence) else [servers]
