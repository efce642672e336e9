"""Which addresses an agent may open, and what it is told of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from agentgym_servers.web.page import BLANK, normal_url

_MOST_URL: Final = 8_000
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
    """What is told of an address out of bounds; empty within them.

    `is_known` says so of an origin, such as `http://shop.test`.
    """
    normal = normal_url(url) if len(url) <= _MOST_URL else ""
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
