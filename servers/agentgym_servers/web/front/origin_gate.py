"""The gate of one site that stands at an address of its own."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_servers.web.front.gate import LocalSite
from agentgym_servers.web.front.message import HttpReply, HttpRequest, Refused, quoted
from agentgym_servers.web.front.proxy_gate import answer_locally
from agentgym_servers.web.har import Exchange


class OriginGate:
    """Answers `GET /p/4` from the one site that stands at this address."""

    def __init__(self, site: LocalSite, exchanges: Sequence[Exchange] = ()) -> None:
        """`exchanges` is where the site remembers, if it does."""
        self._site = site
        self.exchanges = exchanges

    async def answer(self, request: HttpRequest) -> HttpReply:
        """The site's answer."""
        if not request.target.startswith("/"):
            raise Refused(400, f"{quoted(request.target)} is no path; this port is no proxy.")
        return answer_locally(self._site, request)

    def tunnel_to(self, target: str) -> tuple[str, int]:
        """Nowhere."""
        raise Refused(403, f"{quoted(target)} is out of bounds: this port is no proxy.")
