"""Directories: addresses that stand for a changing set of servers, such as `ray://FLEET`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from agentgym_env.entry_points import plugin
from agentgym_env.errors import BadRequest

DIRECTORIES: Final = "agentgym.directories"
"""Entry points by scheme: each makes a `Directory` of (address, kind)."""


class Directory(Protocol):
    """Knows which servers there are now."""

    @property
    def token(self) -> str | None:
        """The token of the servers; None if they need none."""
        ...

    def addresses(self) -> Sequence[str]:
        """The servers that take new sessions or turns; this does not wait."""
        ...

    def await_addresses(self) -> Sequence[str]:
        """The same, as soon as there are any; raises `AgentGymError` if none come."""
        ...


def directory_of(servers: Any, kind: str) -> Directory | None:
    """The directory that an address names; None for ordinary addresses.

    `kind` is `env` or `vllm`. Raises `BadRequest` for a directory among several addresses, and
    what the directory raises.
    """
    given = [servers] if isinstance(servers, str) else servers
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        return None
    for address in given:
        scheme, separator, _ = address.partition("://") if isinstance(address, str) else ("",) * 3
        point = plugin(DIRECTORIES, scheme) if separator else None
        if point is None:
            continue
        if len(given) > 1:
            raise BadRequest(f"{address} stands for all its servers; name no others beside it")
        directory: Directory = point.load()(address, kind)
        return directory
    return None
