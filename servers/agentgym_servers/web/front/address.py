"""The address that a proxy is asked for, taken apart without trusting it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from agentgym_servers.web.front.message import Refused, quoted

_ABSOLUTE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)")
_AUTHORITY: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


class Address(NamedTuple):
    """Where a request is to go."""

    host: str
    """In lower case."""
    port: int
    target: str
    """What to ask that host for, such as `/p/4?x=1`."""


def read_absolute(target: str) -> Address:
    """Read `http://host[:port][/path]`; raises `Refused` for anything else."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise Refused(
            400, f"{quoted(target)} is not an absolute http address; this port is a proxy."
        )
    scheme, authority, rest = found.groups()
    if scheme.lower() != "http":
        raise Refused(403, f"{quoted(target)} is out of bounds: only http addresses are open.")
    host, port = read_authority(authority, 80)
    return Address(host, port, rest if rest.startswith("/") else f"/{rest}")


def read_authority(authority: str, default_port: int | None = None) -> tuple[str, int]:
    """Read `host[:port]`, without user names; raises `Refused` for anything else."""
    found = _AUTHORITY.fullmatch(authority)
    port = default_port if found is None or found[2] is None else int(found[2])
    if found is None or port is None or not 0 < port < 65_536:
        raise Refused(400, f"{quoted(authority)} is no host with a port, such as shop.test:80.")
    return found[1].lower(), port
