"""The gate of a browser's proxy before real sites: requests go to their addresses, and no others.

Redirects go back to the browser, whose next request is looked at like any other: one from an
allowed site to elsewhere leads nowhere.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader
from typing import Final
from urllib.parse import urlsplit

from agentgym_servers.web.front.address import Address, read_absolute, read_authority
from agentgym_servers.web.front.body import read_body
from agentgym_servers.web.front.limits import Limits
from agentgym_servers.web.front.message import (
    Headers,
    HttpReply,
    HttpRequest,
    Refused,
    quoted,
    read_headers,
    values_of,
)
from agentgym_servers.web.front.tunnel import connect
from agentgym_servers.web.front.upload import refuse_files
from agentgym_servers.web.har import Exchange
from agentgym_servers.web.site_map import SiteMap

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_STATUS_LINE: Final = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?")
_OF_ONE_CONNECTION: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class ForwardGate:
    """Forwards to the hosts and ports of a site map: http as it is, https through tunnels.

    What goes through a tunnel is encrypted, so only its host and port are looked at. Nothing is
    recorded here; a browser's own archive has it all.
    """

    exchanges: tuple[Exchange, ...] = ()

    def __init__(self, sites: SiteMap, limits: Limits | None = None) -> None:
        """`limits` are those of the gate's door."""
        self._limits = limits or Limits()
        self._open: dict[str, set[tuple[str, int]]] = {"http": set(), "https": set()}
        for base in sites.bases.values():
            parts = urlsplit(base)
            default = 443 if parts.scheme == "https" else 80
            self._open[parts.scheme].add(read_authority(parts.netloc, default))

    async def answer(self, request: HttpRequest) -> HttpReply:
        """What the real site answers; downloads are refused, and so are uploads of files."""
        address = read_absolute(request.target)
        if address[:2] not in self._open["http"]:
            raise self._out_of_bounds(request.target)
        if request.method not in _METHODS:
            raise Refused(405, f"{quoted(request.method)} is not forwarded; use GET or POST.")
        refuse_files(request)
        place = f"{address.host}:{address.port}"
        try:
            async with asyncio.timeout(self._limits.forward_s):
                reply = await self._ask(request, address)
        except TimeoutError as error:
            raise Refused(504, f"{place} took over {self._limits.forward_s} s.") from error
        except (OSError, IncompleteReadError, LimitOverrunError) as error:
            raise Refused(502, f"{place} gave no whole answer: {error}.") from error
        if _is_download(reply.headers):
            raise Refused(403, f"{quoted(request.target)} is a download, which is out of bounds.")
        return reply

    def tunnel_to(self, target: str) -> tuple[str, int]:
        """The target, if it is where an https site stands."""
        place = read_authority(target)
        if place not in self._open["https"]:
            raise self._out_of_bounds(target)
        return place

    async def _ask(self, request: HttpRequest, address: Address) -> HttpReply:
        asked = _request_bytes(request, address)
        reader, writer = await connect(address[:2], self._limits)
        try:
            writer.write(asked)
            await writer.drain()
            return await _read_reply(reader, request.method, self._limits.reply_bytes)
        finally:
            writer.transport.abort()

    def _out_of_bounds(self, target: str) -> Refused:
        listed = [
            f"{scheme}://{host}:{port}"
            for scheme, places in self._open.items()
            for host, port in sorted(places)
        ]
        return Refused(403, f"{quoted(target)} is out of bounds; open are {', '.join(listed)}.")


def _request_bytes(request: HttpRequest, address: Address) -> bytes:
    host = request.header("host")
    if host and read_authority(host, 80) != address[:2]:
        raise Refused(
            400, f"The Host header {quoted(host)} is not the address's {address.host!r}; send one."
        )
    headers = _passed_on(request.headers, {"content-length", "expect"})
    lines = [f"{request.method} {address.target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    if not host:
        lines.append(f"Host: {address.host}:{address.port}")
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(request.body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body


async def _read_reply(reader: StreamReader, method: str, most: int) -> HttpReply:
    try:
        status, headers = await _read_reply_head(reader)
        if method == "HEAD" or status in (204, 304):
            return HttpReply(status, _passed_on(headers, set()))
        body = await read_body(reader, headers, most, to_the_end=True)
    except Refused as error:
        raise Refused(502, f"The site's answer cannot be passed on. {error.words}") from error
    return HttpReply(status, _passed_on(headers, {"content-length"}), body)


async def _read_reply_head(reader: StreamReader) -> tuple[int, Headers]:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        found = _STATUS_LINE.fullmatch(first)
        if found is None or found[1] == "101":
            raise Refused(502, f"{quoted(first)} is no status line.")
        # What stands in the hundreds announces an answer, and is none.
        if found[1][0] != "1":
            return int(found[1]), read_headers(lines)


def _passed_on(headers: Headers, besides: set[str]) -> Headers:
    """The headers that are not of one connection only, and none of those `besides`."""
    dropped = _OF_ONE_CONNECTION | besides | set(values_of(headers, "connection"))
    return tuple((name, value) for name, value in headers if name.lower() not in dropped)


def _is_download(headers: Headers) -> bool:
    """Whether a browser would save the body, as it does for what it does not know."""
    kinds = [
        value.partition(";")[0].strip().lower()
        for name, value in headers
        if name.lower() == "content-disposition"
    ]
    return any(kind not in ("", "inline") for kind in kinds)
