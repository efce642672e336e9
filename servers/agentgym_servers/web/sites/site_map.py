"""The addresses of WebArena's sites: placeholders to addresses and back, and their accounts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_servers.web.sites.site import ACCOUNTS, HOSTS, Account
from agentgym_servers.web.tasks.tasks import InvalidTask, WebTask
from agentgym_servers.web.text_browser.page import BLANK, normal_url

_MAX_URL: Final = 8_000

_PORTS: Final = {"http": 80, "https": 443}


def typed_error(url: str) -> str:
    """What is wrong with an address that an agent wrote; empty if nothing is."""
    if ":" in url and normal_url(url):
        return ""
    return (
        "Error: Page.goto: Protocol error (Page.navigate): Cannot navigate to invalid URL. "
        "Write it with http://."
    )


def bounds_error(url: str, is_known: Callable[[str], bool]) -> str:
    """The message about an address out of bounds; empty within them.

    `is_known` decides it for an origin, such as `http://shop.test`.
    """
    normal = normal_url(url) if len(url) <= _MAX_URL else ""
    parts = urlsplit(normal)
    if url.strip() == BLANK or is_known(f"{parts.scheme}://{parts.netloc}"):
        return ""
    return (
        f"Error: Page.goto: net::ERR_BLOCKED_BY_ADMINISTRATOR at {url[:200]}. "
        "This address is out of bounds."
    )


def origins_of(bases: Mapping[str, str]) -> frozenset[str]:
    """The origins of sites' base addresses, as `bounds_error` asks for them."""
    origins = set()
    for base in bases.values():
        parts = urlsplit(base)
        host = parts.netloc.lower().removesuffix(f":{_PORTS[parts.scheme]}")
        origins.add(f"{parts.scheme}://{host}")
    return frozenset(origins)


_PLACEHOLDER: Final = re.compile(r"__[A-Z][A-Z_]*[A-Z]__")


class SiteMap(msgspec.Struct, frozen=True):
    """Each site's base address, without a slash at the end, and the accounts."""

    bases: Mapping[str, str]
    accounts: Mapping[str, Account] = msgspec.field(default_factory=lambda: ACCOUNTS)

    def resolve(self, text: str) -> str:
        """Put addresses in the place of `__SHOPPING__` and its like."""
        return _PLACEHOLDER.sub(lambda found: self._base(found.group()), text)

    def unresolve(self, text: str) -> str:
        """Put placeholders in the place of addresses; the longest address wins."""
        bases = sorted(self.bases.items(), key=lambda item: (-len(item[1]), item[0]))
        names = {base: f"__{site.upper()}__" for site, base in reversed(bases)}
        choices = "|".join(re.escape(base) for _, base in bases)
        # What continues as a longer host, port or path segment is another address.
        return re.sub(f"(?:{choices})(?![\\w.:@-])", lambda found: names[found.group()], text)

    def resolve_task(self, task: WebTask) -> WebTask:
        """The task with addresses wherever it has placeholders."""
        text = msgspec.json.encode(task).decode()
        try:
            return msgspec.json.decode(self.resolve(text), type=WebTask)
        except BadRequest as error:
            raise InvalidTask(f"Task {task.task_id}: {error}") from error

    def _base(self, placeholder: str) -> str:
        base = self.bases.get(placeholder.strip("_").lower())
        if base is None:
            raise BadRequest(
                f"No address is known for {placeholder}; the sites are {', '.join(self.bases)}."
            )
        return base


def embedded_sites() -> SiteMap:
    """The sites of our own."""
    return SiteMap(HOSTS)


def real_sites(environment: Mapping[str, str]) -> SiteMap:
    """WebArena's own sites at the addresses of `WA_SHOPPING`, `WA_REDDIT` and so on."""
    bases = {site: environment.get(f"WA_{site.upper()}", "").rstrip("/") for site in HOSTS}
    for site, base in bases.items():
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.netloc or '"' in base:
            raise BadRequest(
                f"WA_{site.upper()} is {base!r}; set it to the site's http or https address."
            )
    return SiteMap(bases)
