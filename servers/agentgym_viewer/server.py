"""The viewer's web application: the API, static files, and security headers."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from agentgym_viewer.api import Api
from agentgym_viewer.index import EpisodeIndex
from agentgym_viewer.indexer import Indexer
from agentgym_viewer.runs import Runs

HEADERS = {
    # The page shows texts of models and environments: even if one were parsed as markup, it could
    # not load, run or send anything.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

_PAGES = ("/", "/trajectories", "/compare", "/episode/{run}/{file}/{start}")

_LOOK_S = 2.0
"""Interval between searches for new runs."""


def guard(host: str) -> Middleware:
    """A middleware that checks the Host header and sets security headers."""
    named = {"localhost", host.lower(), socket.gethostname().lower()}

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = host_name(request.headers.get("Host", ""))
        if name not in named and not _is_address(name):
            # DNS rebinding: another site's name may resolve to this server.
            response: web.StreamResponse = web.Response(
                status=421, text="Use localhost, an IP address or this server's host name."
            )
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=error.text)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    return guarded


def host_name(header: str) -> str:
    """The name in a Host header, without port and IPv6 brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()


def make_app(
    roots: Sequence[Path], index_path: Path, host: str = "127.0.0.1", *, trusted: bool = False
) -> web.Application:
    """The web application; raises `ConfigError` if there is no run.

    `trusted` also renders environments whose settings contain code or addresses.
    """
    index = EpisodeIndex(index_path)
    index.forget_runs_that_are_gone()
    runs = Runs(roots, index)
    indexer = Indexer(index)
    app = web.Application(middlewares=[guard(host)])
    app.add_routes(Api(runs, index, indexer, trusted=trusted).routes())
    app.add_routes(_page_routes())

    async def follow() -> None:
        while True:
            indexer.follow({runs.ids[name]: path for name, path in runs.paths.items()})
            before = len(runs.paths)
            while len(runs.paths) == before:
                await asyncio.sleep(_LOOK_S)
                await asyncio.to_thread(runs.look)

    async def live(app: web.Application) -> AsyncIterator[None]:
        indexer.start()
        following = asyncio.create_task(follow())
        yield
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await asyncio.to_thread(indexer.close)
        index.close()

    app.cleanup_ctx.append(live)
    return app


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _page_routes() -> list[web.RouteDef]:
    """The routes of the static files, which are read once: paths are never built from a URL."""
    static = files("agentgym_viewer").joinpath("static")
    held = {path.name: path.read_bytes() for path in static.iterdir() if path.is_file()}

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=held["index.html"], content_type="text/html", charset="utf-8")

    async def file(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        kind = _KINDS.get(Path(name).suffix)
        if name not in held or kind is None:
            raise web.HTTPNotFound(text="there is no such file")
        return web.Response(
            body=held[name],
            content_type=kind,
            charset="utf-8",
            headers={"Cache-Control": "no-cache"},
        )

    return [*(web.get(path, page) for path in _PAGES), web.get("/static/{name}", file)]
