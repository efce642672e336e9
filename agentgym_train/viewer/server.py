"""The viewer's web server: the page's own files, and the answers to what it asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from pathlib import Path

from aiohttp import web

from agentgym_train.viewer.api import Api
from agentgym_train.viewer.index import Index
from agentgym_train.viewer.indexer import Indexer
from agentgym_train.viewer.runs import Runs
from agentgym_train.viewer.safety import guard

_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_PAGES = ("/", "/trajectories", "/compare", "/episode/{run}/{file}/{start}")
_LOOK_S = 2.0
"""Between two looks for runs that are new in a folder of runs."""


def make_app(
    roots: Sequence[Path], index_path: Path, host: str = "127.0.0.1", *, trusted: bool = False
) -> web.Application:
    """The application; raises `BadRequest` where there is no run.

    `trusted` draws pictures with settings of an environment that name code or addresses, too.
    """
    index = Index(index_path)
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


def _page_routes() -> list[web.RouteDef]:
    """The page's own files, read once: no path is ever made from an address."""
    static = files("agentgym_train.viewer").joinpath("static")
    held = {path.name: path.read_bytes() for path in static.iterdir() if path.is_file()}

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=held["index.html"], content_type="text/html", charset="utf-8")

    async def file(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        kind = _KINDS.get(Path(name).suffix)
        if name not in held or kind is None:
            raise web.HTTPNotFound(text="the page has no such file")
        return web.Response(
            body=held[name],
            content_type=kind,
            charset="utf-8",
            headers={"Cache-Control": "no-cache"},
        )

    return [*(web.get(path, page) for path in _PAGES), web.get("/static/{name}", file)]
