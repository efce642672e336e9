"""The sites of a session at addresses of their own, such as `http://127.0.0.2:7770` for the shop.

For programs that know no proxy, and in place of the real WebArena.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from agentgym_env.errors import BadRequest
from agentgym_servers.web.evaluation.verified import Exchange
from agentgym_servers.web.front.forward_gate import OriginGate
from agentgym_servers.web.front.front import Front, Listener, listen_at
from agentgym_servers.web.front.session_site import Links, SessionSite
from agentgym_servers.web.sites.site import HOSTS, SiteSession, host_of
from agentgym_servers.web.sites.site_map import SiteMap

ANY_PORTS: Final[Mapping[str, str]] = {
    site: f"http://127.0.0.{number}:0{urlsplit(base).path}"
    for number, (site, base) in enumerate(HOSTS.items(), 2)
}
"""An address for each site, on a port that is free."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Sites at addresses of their own."""

    sites: SiteMap
    """The addresses as they came out, each with its port."""
    listeners: Mapping[str, Listener]
    """By WebArena's name of the site. Their exchanges are in terms of these addresses."""

    def close(self) -> None:
        """Close the listeners."""
        for listener in self.listeners.values():
            listener.close()


def open_origins(
    front: Front,
    session: SiteSession,
    bases: Mapping[str, str] = ANY_PORTS,
    *,
    rest: bool = False,
    record: bool = False,
) -> Origins:
    """Serve sites of a session at base addresses of 127.x.y.z, as `WA_SHOPPING` would name them.

    A port of 0 is any that is free. Links between these sites lead to these addresses; cookies do
    not tell ports apart, so each site has an address of its own. `rest` opens `/rest/`.
    """
    parsed = {site: _parse(site, base) for site, base in bases.items()}
    if len({parts.hostname for parts in parsed.values()}) < len(parsed):
        raise BadRequest(
            f"Two of {', '.join(bases.values())} share an address, and so their cookies; give each "
            "site one of its own, such as 127.0.0.2 and 127.0.0.3."
        )
    sockets: dict[str, socket.socket] = {}
    try:
        for site, parts in parsed.items():
            sockets[site] = listen_at(parts.hostname or "", parts.port or 0)
    except BadRequest:
        for sock in sockets.values():
            sock.close()
        raise
    roots = {site: _root(sock) for site, sock in sockets.items()}
    links = Links({host_of(site): root for site, root in roots.items()})
    listeners = {}
    for site, sock in sockets.items():
        exchanges: list[Exchange] = []
        kept = exchanges if record else None
        page = SessionSite(session, host_of(site), rest=rest, exchanges=kept, links=links)
        listeners[site] = front.open_listener(OriginGate(page, exchanges), sock)
    return Origins(SiteMap({site: roots[site] + parsed[site].path for site in bases}), listeners)


def _parse(site: str, base: str) -> SplitResult:
    """The parts of a base; its path is ours, for paths are not changed on the way."""
    own = HOSTS.get(site)
    try:
        parts = urlsplit(base)
        local = ipaddress.ip_address(parts.hostname or "").is_loopback and parts.port is not None
    except ValueError:
        local = False
    if own is None or not local or parts.scheme != "http" or parts.path != urlsplit(own).path:
        example = ANY_PORTS.get(site, ANY_PORTS["shopping"])
        raise BadRequest(
            f"The address of {site} is {base!r}; give one of {', '.join(HOSTS)} an address such "
            f"as {example}."
        )
    return parts


def _root(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://{host}:{port}"
