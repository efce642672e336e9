"""The REST interface of a real shop, as its administrator asks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import requests

from agentgym_env.errors import AgentGymError
from agentgym_servers.web.evaluation.page_access import JsonValue
from agentgym_servers.web.sites.site import Request, SiteSession, host_of
from agentgym_servers.web.sites.site_map import SiteMap

_TOKEN_PATH: Final = "/rest/default/V1/integration/admin/token"

_TIMEOUT_S: Final = 30.0


class RealRest:
    """Asks the sites at their own addresses, past any browser."""

    def __init__(self, sites: SiteMap) -> None:
        self._sites = sites
        self._http = requests.Session()
        self._http.trust_env = False

    def get(self, site: str, path: str, query: Mapping[str, str]) -> JsonValue:
        """The JSON at a path of a site; raises where there is none."""
        base = self._sites.bases[site]
        if "Authorization" not in self._http.headers:
            self._http.headers["Authorization"] = f"Bearer {self._token(base)}"
        return self._json("GET", f"{base}{path}", params=dict(query))

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def _token(self, base: str) -> str:
        admin = self._sites.accounts["shopping_admin"]
        body = {"username": admin.username, "password": admin.password}
        return str(self._json("POST", f"{base}{_TOKEN_PATH}", body=body))

    def _json(
        self,
        method: str,
        url: str,
        params: dict[str, str] | None = None,
        body: dict[str, str] | None = None,
    ) -> JsonValue:
        try:
            response = self._http.request(
                method, url, params=params, json=body, timeout=_TIMEOUT_S, allow_redirects=False
            )
            response.raise_for_status()
            answer: JsonValue = response.json()
        except requests.RequestException as error:
            raise AgentGymError(f"{url} gives no JSON: {error}") from error
        return answer


class SiteRest:
    """Asks a session's own sites, past any browser."""

    def __init__(self, session: SiteSession) -> None:
        self._session = session

    def get(self, site: str, path: str, query: Mapping[str, str]) -> JsonValue:
        """The JSON at a path of a site; raises where there is none."""
        values = {name: [value] for name, value in query.items()}
        response = self._session.answer(Request("GET", host_of(site), path, values))
        try:
            if response.status != 200:
                raise ValueError(f"its status is {response.status}")
            answer: JsonValue = msgspec.json.decode(response.body)
        except ValueError as error:
            raise AgentGymError(f"{site} gives no JSON at {path}: {error}") from error
        return answer
