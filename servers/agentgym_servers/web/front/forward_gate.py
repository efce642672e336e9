"""What a port lets through: to our sites only, or to the real sites' addresses.

Redirects go back to the browser, whose next request is looked at like any other: one from an
allowed site to elsewhere leads nowhere.
"""

from __future__ import annotations

import asyncio
import os
import re
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agentgym_servers.web.evaluation.verified import Exchange
from agentgym_servers.web.front.front import Front, Listener, LocalSite
from agentgym_servers.web.front.message import (
    Address,
    Headers,
    HttpReply,
    HttpRequest,
    Refused,
    quoted,
    read_absolute,
    read_authority,
    read_body,
    read_headers,
    refuse_files,
    values_of,
)
from agentgym_servers.web.front.session_site import SessionSite, StaticSite
from agentgym_servers.web.front.tunnel import Limits, connect
from agentgym_servers.web.sites.site import HOSTS, SiteSession, host_of
from agentgym_servers.web.sites.site_map import SiteMap

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
        """`limits` are those of the gate's listener."""
        self._limits = limits or Limits()
        self._open: dict[str, set[tuple[str, int]]] = {"http": set(), "https": set()}
        for base in sites.bases.values():
            parts = urlsplit(base)
            default = 443 if parts.scheme == "https" else 80
            self._open[parts.scheme].add(read_authority(parts.netloc, default))

    async def answer(self, request: HttpRequest) -> HttpReply:
        """What the real site answers; downloads and uploads of files are rejected."""
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
        """The target, if an https site is there."""
        place = read_authority(target)
        if place not in self._open["https"]:
            raise self._out_of_bounds(target)
        return place

    async def _ask(self, request: HttpRequest, address: Address) -> HttpReply:
        sent_bytes = _request_bytes(request, address)
        reader, writer = await connect(address[:2], self._limits)
        try:
            writer.write(sent_bytes)
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
        # A status of 100 to 199 announces an answer, and is none.
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


class ProxyGate:
    """Answers `GET http://shop.test/p/4` from the site of that host.

    As a proxy has to, it goes by the address in the request line, whatever the Host header is.
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
    """The gate to hosts of a session, and to further sites besides.

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


class OriginGate:
    """Answers `GET /p/4` from the one site at this address."""

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


def open_embedded(session: SiteSession) -> Listener:
    """A listener to a session's sites alone."""
    gate = session_gate(session, [host_of(site) for site in HOSTS], record=True)
    return _front(os.getpid()).open_listener(gate)


def open_real(sites: SiteMap) -> Listener:
    """A listener to real sites alone, at their own addresses."""
    return _front(os.getpid()).open_listener(ForwardGate(sites))


def open_static(host: str, folder: Path) -> Listener:
    """A listener to a folder of files alone, at a host."""
    return _front(os.getpid()).open_listener(ProxyGate({host: _static_site(folder)}))


@cache
def _front(process: int) -> Front:
    # A fork does not take the front's thread along.
    return Front()


@cache
def _static_site(folder: Path) -> StaticSite:
    return StaticSite(folder)
