"""Where WebArena's sites stand: placeholders to addresses and back, and who logs in there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_servers.web.accounts import ACCOUNTS, Account
from agentgym_servers.web.site import HOSTS
from agentgym_servers.web.tasks import InvalidTask, WebTask

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
        # What goes on as a longer host, port or path segment is another address.
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
