"""The REST interface of the embedded sites, on the data of one episode."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agentgym_env.errors import AgentGymError
from agentgym_servers.web.page_access import JsonValue
from agentgym_servers.web.site import Request, SiteSession, host_of


class SiteRest:
    """Asks a session's own sites, past any browser."""

    def __init__(self, session: SiteSession) -> None:
        self._session = session

    def get(self, site: str, path: str, query: Mapping[str, str]) -> JsonValue:
        """The JSON at a path of a site; raises where there is none."""
        asked = {name: [value] for name, value in query.items()}
        response = self._session.answer(Request("GET", host_of(site), path, asked))
        try:
            if response.status != 200:
                raise ValueError(f"its status is {response.status}")
            answer: JsonValue = msgspec.json.decode(response.body)
        except ValueError as error:
            raise AgentGymError(f"{site} gives no JSON at {path}: {error}") from error
        return answer
