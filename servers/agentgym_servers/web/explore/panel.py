"""The HTTP side of exploring: a page with the goal and a frame, and the sites that it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from agentgym_env.errors import AgentGymError, BadRequest
from agentgym_servers.web.explore.explorer import Explorer, ShownPage
from agentgym_servers.web.front.forward_gate import OriginGate
from agentgym_servers.web.front.front import Front, LocalSite, listen_at
from agentgym_servers.web.front.message import (
    Headers,
    HttpReply,
    HttpRequest,
    Refused,
    header_of,
    quoted,
)
from agentgym_servers.web.front.session_site import SessionSite
from agentgym_servers.web.front.tunnel import Limits
from agentgym_servers.web.sites.embedded import NAMES, embedded
from agentgym_servers.web.sites.pages import render
from agentgym_servers.web.sites.site import HOSTS, host_of

_HOST: Final = "127.0.0.1"
_LIMITS: Final = Limits(body_bytes=8 * 2**20)
_T = TypeVar("_T")
_SITES: Final = NAMES | {"homepage": "Homepage"}


class OwnAddressGate(OriginGate):
    """Answers browsers that know this port by its address, and forms of our own pages alone.

    Any page of the web can make a browser ask 127.0.0.1, by a link, a form or a name of its own.
    """

    def __init__(self, site: LocalSite, address: str, origins: Sequence[str]) -> None:
        """`origins` are those whose pages may send something."""
        super().__init__(site)
        self._host = address.partition("://")[2]
        self._origins = frozenset(origins)

    async def answer(self, request: HttpRequest) -> HttpReply:
        """The site's answer."""
        if request.header("host") != self._host:
            raise Refused(403, f"This is http://{self._host}, not {quoted(request.header('host'))}")
        origin = request.header("origin")
        if request.method == "POST" and origin and origin not in self._origins:
            raise Refused(403, f"A page of {quoted(origin)} may not send anything here.")
        return await super().answer(request)


class ExploredSite:
    """One site, whose pages report to the panel where they are and what is written in them."""

    def __init__(self, explorer: Explorer, host: str, panel: str) -> None:
        self._site = SessionSite(explorer.session, host, links=explorer.links)
        self._script = render(__package__, "page.html", panel=panel).encode()
        self._headers: Headers = (("Content-Security-Policy", f"frame-ancestors {panel}"),)

    def answer(self, request: HttpRequest) -> HttpReply:
        """The site's answer, its pages with the script that reports."""
        reply = self._site.answer(request)
        body = reply.body
        if header_of(reply.headers, "content-type").startswith("text/html"):
            # The script removes its own element, so the page's elements stay those of the site.
            head, mark, tail = body.partition(b"</head>")
            body = head + self._script + mark + tail if mark else body + self._script
        return HttpReply(reply.status, (*reply.headers, *self._headers), body)


class _Start(msgspec.Struct):
    task: str


class _Check(msgspec.Struct):
    page: ShownPage
    answer: str


class PanelSite:
    """The page with the goal, and what it asks for as JSON."""

    def __init__(self, explorer: Explorer, origins: Sequence[str]) -> None:
        self._explorer = explorer
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            f"connect-src 'self'; frame-src {' '.join(origins)}; frame-ancestors 'none'"
        )
        self._headers: Headers = (
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
        )

    def answer(self, request: HttpRequest) -> HttpReply:
        """The page, a task that is started, or a verdict; what cannot be done is a 400."""
        try:
            match request.method, request.path:
                case "GET" | "HEAD", "/":
                    return self._reply("text/html; charset=utf-8", self._page().encode())
                case "POST", "/start":
                    self._explorer.start(_read(request, _Start).task)
                    return self._json(self._task())
                case "POST", "/check":
                    return self._json(self._verdict(_read(request, _Check)))
        except Refused:
            raise
        except AgentGymError as error:
            raise Refused(400, str(error)) from error
        raise Refused(404, f"There is no {quoted(request.path)} here.")

    def _page(self) -> str:
        links = [
            (name, self._explorer.links.shown(HOSTS[site]) + "/") for site, name in _SITES.items()
        ]
        return render(
            __package__,
            "panel.html",
            sites=links,
            tasks=list(self._explorer.world.tasks),
            task=self._task(),
        )

    def _task(self) -> dict[str, Any]:
        task = self._explorer.task
        return {
            "id": self._explorer.task_id,
            "goal": task.intent,
            "url": self._explorer.start_url,
            "needs_answer": "string_match" in task.eval.eval_types,
        }

    def _verdict(self, check: _Check) -> dict[str, Any]:
        judged = self._explorer.check(check.page, check.answer)
        return {"reached": judged.score > 0, "verdicts": judged.verdicts}

    def _reply(self, kind: str, body: bytes) -> HttpReply:
        return HttpReply(200, (("Content-Type", kind), *self._headers), body)

    def _json(self, value: object) -> HttpReply:
        return self._reply("application/json", msgspec.json.encode(value))


def _read(request: HttpRequest, kind: type[_T]) -> _T:
    # A form of another page cannot send this type without being asked whether it may.
    if request.header("content-type").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "Send JSON, as application/json.")
    try:
        return msgspec.json.decode(request.body, type=kind)
    except msgspec.DecodeError as error:
        raise Refused(400, f"The body is not what this path takes: {error}.") from error


@contextmanager
def open_panel(task_id: str | None = None, port: int = 0) -> Iterator[tuple[Explorer, str]]:
    """Serve the panel at a port and each site at one of the ports after it, until the block ends.

    A port of 0 is any that is free, for the sites too. Gives the explorer and the panel's address.
    """
    world = embedded(0)
    task_id = task_id or next(iter(world.tasks))
    world.task_set.split_of(task_id)
    if port > 65535 - len(HOSTS):
        raise BadRequest(f"port {port} leaves no room for {len(HOSTS)} sites after it; use a lower")
    sockets = []
    try:
        for number in range(len(HOSTS) + 1):
            sockets.append(listen_at(_HOST, port and port + number))
    except BadRequest as error:
        for sock in sockets:
            sock.close()
        raise BadRequest(
            f"ports {port} to {port + len(HOSTS)} of {_HOST} must be free ({error}); choose others "
            "with --port, or 0 for free ones"
        ) from error
    panel, *roots = (f"http://{_HOST}:{sock.getsockname()[1]}" for sock in sockets)
    explorer = Explorer(world, task_id, dict(zip(map(host_of, HOSTS), roots, strict=True)))
    with Front() as front:
        gate = OwnAddressGate(PanelSite(explorer, roots), panel, [panel])
        front.open_listener(gate, sockets[0], _LIMITS)
        for site, root, sock in zip(HOSTS, roots, sockets[1:], strict=True):
            page = ExploredSite(explorer, host_of(site), panel)
            front.open_listener(OwnAddressGate(page, root, roots), sock)
        yield explorer, panel
    explorer.session.close()
