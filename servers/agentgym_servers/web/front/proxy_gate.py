"""The gate of a browser's proxy before sites of this process: hosts by name, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agentgym_servers.web.front.address import read_absolute
from agentgym_servers.web.front.gate import LocalSite
from agentgym_servers.web.front.message import HttpReply, HttpRequest, Refused, quoted
from agentgym_servers.web.front.session_site import SessionSite
from agentgym_servers.web.har import Exchange
from agentgym_servers.web.site import SiteSession


class ProxyGate:
    """Answers `GET http://shop.test/p/4` from the site of that host.

    As a proxy has to, it goes by the address in the request line, whatever the Host header says.
    """

    def __init__(self, hosts: Mapping[str, LocalSite], exchanges: Sequence[Exchange] = ()) -> None:
        """`exchanges` is where the sites remember, if they do."""
        self._hosts = hosts
        self.exchanges = exchanges

    async def answer(self, request: HttpRequest) -> HttpReply:
        """The site's answer; other hosts, ports and schemes are out of bounds."""
        address = read_absolute(request.target)
        site = self._hosts.get(address.host)
        if site is None or address.port != 80:
            raise Refused(
                403,
                f"{quoted(f'{address.host}:{address.port}')} is out of bounds; the sites are "
                f"{', '.join(self._hosts)}.",
            )
        return answer_locally(site, msgspec.structs.replace(request, target=address.target))

    def tunnel_to(self, target: str) -> tuple[str, int]:
        """Nowhere: these sites are http only."""
        raise Refused(403, f"{quoted(target)} is out of bounds: no https and no tunnels here.")


def session_gate(
    session: SiteSession,
    hosts: Sequence[str],
    *,
    beside: Mapping[str, LocalSite] | None = None,
    rest: bool = False,
    record: bool = False,
) -> ProxyGate:
    """The gate to hosts of a session, and to further sites that stand beside them.

    `rest` opens the paths under `/rest/`, for evaluators; `record` keeps the session's exchanges.
    """
    exchanges: list[Exchange] = []
    sites: dict[str, LocalSite] = {
        host: SessionSite(session, host, rest=rest, exchanges=exchanges if record else None)
        for host in hosts
    }
    return ProxyGate({**sites, **(beside or {})}, exchanges)


def answer_locally(site: LocalSite, request: HttpRequest) -> HttpReply:
    """A site's answer, without troubling it about the icon that browsers ask for by themselves."""
    if request.path == "/favicon.ico" and request.method in ("GET", "HEAD"):
        return HttpReply(204)
    return site.answer(request)
