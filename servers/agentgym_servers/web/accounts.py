"""Who the agent is on each site: WebArena's published accounts, so that its log-ins work here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Account(NamedTuple):
    """Who the agent is on a site."""

    username: str
    password: str


ACCOUNTS: Final[Mapping[str, Account]] = {
    "shopping": Account("emma.lopez@gmail.com", "Password.123"),
    "shopping_admin": Account("admin", "admin1234"),
    "reddit": Account("MarvelsGrantMan136", "test1234"),
    "gitlab": Account("byteblaze", "hello1234"),
}
"""WebArena's name of a site -> the account there."""
