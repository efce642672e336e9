"""Sockets of clients: they notice a machine that is gone."""

from __future__ import annotations

import socket
from typing import Any, Final

CONNECT_S: Final = 10.0
"""Maximum time to connect, in seconds."""
_OPTIONS: Final = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 20_000,  # milliseconds
}


def socket_options() -> list[tuple[int, int, int]]:
    """Options by which a connection fails about 20 s after the other machine vanished.

    A machine that loses its power or its link closes no connection, so a call would wait for its
    whole timeout. A server that merely takes long still answers these probes.
    """
    tcp = [(socket.IPPROTO_TCP, n, v) for name, v in _OPTIONS.items() if (n := _number(name))]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *tcp]


def new_socket(address: Any) -> socket.socket:
    """A socket with these options, for aiohttp's `TCPConnector(socket_factory=...)`."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    try:
        for level, name, value in socket_options():
            made.setsockopt(level, name, value)
    except BaseException:
        made.close()
        raise
    return made


def _number(name: str) -> int | None:
    """The option's number; None on a system without it."""
    return getattr(socket, name, None)
