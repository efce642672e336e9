"""The viewer's web server: the page's files, its API and its protection."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from rich.console import Console

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.trust import Trust
from agentgym_train.viewer.index import Index, Indexer, Place
from agentgym_train.viewer.query import (
    NoPicture,
    Pictures,
    Shelf,
    count_of,
    facets,
    html_of,
    lines_of,
    neighbours,
    page_of,
    played,
    query_of,
)
from agentgym_train.viewer.runs import Runs

_T = TypeVar("_T")

_RELATED = 200

_EPISODE = "/{run}/{file}/{start:[0-9]{1,18}}"


class Api:
    """The handlers of one viewer."""

    def __init__(
        self, runs: Runs, index: Index, indexer: Indexer, *, trusted: bool = False
    ) -> None:
        self._runs = runs
        self._index = index
        self._indexer = indexer
        self._shelf = Shelf(index)
        self._pictures = Pictures(trusted=trusted)
        self._facets: tuple[int, dict[str, Any]] = (-1, {})

    def routes(self) -> list[web.RouteDef]:
        """All that can be asked; nothing can be changed."""
        episode = f"/api/episode{_EPISODE}"
        return [
            web.get("/api/status", self.status),
            web.get("/api/runs", self.runs),
            web.get("/api/metrics", self.metrics),
            web.get("/api/facets", self.facets),
            web.get("/api/trajectories", self.trajectories),
            web.get(episode, self.episode),
            web.get(f"{episode}/related", self.related),
            web.get(f"{episode}/text", self.text),
            web.get(f"{episode}/tokens", self.tokens),
            web.get(f"{episode}/pictures", self.pictures),
            web.get(f"{episode}/picture", self.picture),
            web.get(f"/export{_EPISODE}.json", self.export_json),
            web.get(f"/export{_EPISODE}.html", self.export_html),
            web.get("/export/trajectories.jsonl", self.export_lines),
        ]

    async def status(self, request: web.Request) -> web.Response:
        """A text that changes with what is known, so that a page knows when to ask again."""
        busy = not self._indexer.caught_up.is_set()
        return await _answer(lambda: {"version": self._runs.stamp(), "busy": busy})

    async def runs(self, request: web.Request) -> web.Response:
        """All runs with their facts."""
        return await _answer(
            lambda: [
                {**self._runs.facts(name), "played": played(self._index, self._runs.ids[name])}
                for name in list(self._runs.paths)
            ]
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """A run's figures."""
        name = self._run(request.query.get("run", ""))
        return await _answer(lambda: self._runs.metrics(name))

    async def facets(self, request: web.Request) -> web.Response:
        """What can be filtered by."""

        def found() -> dict[str, Any]:
            stamp = self._index.stamp()
            if self._facets[0] != stamp:
                held = facets(self._index, list(self._runs.ids.values()))
                self._facets = (stamp, {"run": list(self._runs.paths), **held})
            return self._facets[1]

        return await _answer(found)

    async def trajectories(self, request: web.Request) -> web.Response:
        """A page of the table."""
        asked = _asked(request)
        offset = _number(request, "offset", 0)
        limit = _number(request, "limit", 100)

        def found() -> dict[str, Any]:
            query = query_of(self._index, self._runs.ids, asked)
            rows = page_of(self._index, query, offset, limit)
            # Rows further down belong to a count that the page has.
            count = count_of(self._index, query) if offset == 0 else {}
            return {
                **count,
                "searches": self._index.finds_text,
                "rows": [self._public(row) for row in rows],
            }

        return await _answer(found)

    async def episode(self, request: web.Request) -> web.Response:
        """One episode, and those before and after it in the table it was found in."""
        name, place = await self._place(request)
        asked = _asked(request)

        def found() -> dict[str, Any]:
            query = query_of(self._index, self._runs.ids, asked)
            near = neighbours(self._index, query, place.id)
            return {
                **self._shelf.page(self._runs.paths[name], place),
                "run": name,
                "file": place.name,
                "start": place.start,
                **{key: self._public(row) if row else None for key, row in near.items()},
            }

        return await _answer(found)

    async def related(self, request: web.Request) -> web.Response:
        """Other episodes of the same task, in all runs, those of the same group first."""
        _, place = await self._place(request)

        def found() -> list[dict[str, Any]]:
            own = self._index.rows("SELECT * FROM episodes WHERE id = ?", (place.id,))[0]
            asked = {"task": [own["task"]], "env": [own["env"]], "sort": ["-step"]}
            query = query_of(self._index, self._runs.ids, asked)
            rows = page_of(self._index, query, 0, _RELATED)
            same = ("run", "name", "step", "grp")
            for row in rows:
                row["group_mate"] = own["grp"] >= 0 and all(row[k] == own[k] for k in same)
            rows.sort(key=lambda row: not row["group_mate"])
            return [self._public(row) for row in rows if row["id"] != place.id]

        return await _answer(found)

    async def text(self, request: web.Request) -> web.Response:
        """One long text, whole."""
        name, place = await self._place(request)
        turn, field = _number(request, "turn", 0), request.query.get("field", "")
        found = await _off(lambda: self._shelf.text(self._runs.paths[name], place, turn, field))
        return _json({"text": found})

    async def tokens(self, request: web.Request) -> web.Response:
        """The episode's tokens."""
        name, place = await self._place(request)
        return await _answer(lambda: self._shelf.tokens(self._runs.paths[name], place))

    async def pictures(self, request: web.Request) -> web.Response:
        """How many pictures there are, or why there are none."""
        name, place = await self._place(request)

        def found() -> dict[str, Any]:
            episode = self._shelf.read(self._runs.paths[name], place)
            if not self._pictures.draws(episode.env):
                return {"count": 0, "why": ""}
            try:
                return {"count": len(self._drawn(name, place)), "why": ""}
            except NoPicture as error:
                return {"count": 0, "why": str(error)}

        return await _answer(found)

    async def picture(self, request: web.Request) -> web.Response:
        """One picture."""
        name, place = await self._place(request)
        turn = _number(request, "turn", 0)
        try:
            drawn = await asyncio.to_thread(self._drawn, name, place)
            return web.Response(body=drawn[turn], content_type="image/png")
        except (NoPicture, IndexError) as error:
            raise web.HTTPNotFound(text=str(error)) from error

    async def export_json(self, request: web.Request) -> web.Response:
        """The episode's line as it is on disk."""
        name, place = await self._place(request)
        body = await _off(lambda: self._shelf.raw(self._runs.paths[name], place))
        return _download(body, "application/json", f"{place.name}-{place.start}.json")

    async def export_html(self, request: web.Request) -> web.Response:
        """The episode as one page that needs nothing else."""
        name, place = await self._place(request)
        body = await _off(
            lambda: html_of(self._shelf.read(self._runs.paths[name], place), name, place)
        )
        return _download(body.encode(), "text/html", f"{place.name}-{place.start}.html")

    async def export_lines(self, request: web.Request) -> web.StreamResponse:
        """All episodes of a filter, one a line, as they are on disk."""
        query = await _off(lambda: query_of(self._index, self._runs.ids, _asked(request)))
        response = web.StreamResponse(
            headers={"Content-Disposition": 'attachment; filename="trajectories.jsonl"'}
        )
        response.content_type = "application/x-ndjson"
        await response.prepare(request)
        places = lines_of(self._index, query)
        while (batch := await asyncio.to_thread(next, places, None)) is not None:
            for run, place in batch:
                line = await asyncio.to_thread(
                    self._shelf.raw, self._runs.paths[self._runs.name_of(run)], place
                )
                await response.write(line)
        return response

    def _drawn(self, name: str, place: Place) -> list[bytes]:
        run = self._runs.paths[name]
        settings = self._runs.config(name).get("env_kwargs")
        key = (place.run, place.name, place.start)
        return self._pictures.of(key, self._shelf.read(run, place), settings or {})

    def _run(self, name: str) -> str:
        if name not in self._runs.paths:
            raise web.HTTPNotFound(text=f"no run {name[:100]!r} is shown here")
        return name

    async def _place(self, request: web.Request) -> tuple[str, Place]:
        """The run and place that an address names, both known: no path is made from an address."""
        name, file = self._run(request.match_info["run"]), request.match_info["file"]
        start = int(request.match_info["start"])
        found = await asyncio.to_thread(self._index.place, self._runs.ids[name], file, start)
        if found is None:
            raise web.HTTPNotFound(text=f"{name} has no episode at byte {start} of {file[:100]}")
        return name, found

    def _public(self, row: Mapping[str, Any]) -> dict[str, Any]:
        shown = {key: value for key, value in row.items() if key not in ("id", "length", "grp")}
        return {**shown, "run": self._runs.name_of(row["run"]), "group": row["grp"]}


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        content_type="application/json",
        status=status,
        headers={"Cache-Control": "no-store"},
    )


async def _answer(work: Callable[[], Any]) -> web.Response:
    return _json(await _off(work))


async def _off(work: Callable[[], _T]) -> _T:
    """Work that blocks; what cannot be asked is the asker's fault."""
    try:
        return await asyncio.to_thread(work)
    except BadRequest as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def _asked(request: web.Request) -> dict[str, list[str]]:
    return {key: request.query.getall(key) for key in request.query}


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise web.HTTPBadRequest(text=f"{name} is a number from 0 up, got {text[:100]!r}")
    return int(text)


def _download(body: bytes, kind: str, name: str) -> web.Response:
    # A file's name comes from a run's folder: only what no header can misread stays of it.
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    return web.Response(
        body=body,
        content_type=kind,
        charset="utf-8",
        headers={"Content-Disposition": f'attachment; filename="{plain}"'},
    )


HEADERS = {
    # Texts of models and worlds are shown here: even if one were taken for markup, it could load
    # nothing, run nothing and send nothing.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def guard(host: str) -> Middleware:
    """A middleware for a server that listens at `host`."""
    named = {"localhost", host.lower(), socket.gethostname().lower()}

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = host_name(request.headers.get("Host", ""))
        if name not in named and not _is_address(name):
            # A page elsewhere may have its own name lead here; then the name gives it away.
            response: web.StreamResponse = web.Response(
                status=421, text="This server answers to localhost, addresses and its own name."
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
    """The name in a Host header, without the port and the brackets of IPv6."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

_PAGES = ("/", "/trajectories", "/compare", "/episode/{run}/{file}/{start}")

_LOOK_S = 2.0

"""Between two looks for runs that are new in a folder of runs."""


def make_app(
    roots: Sequence[Path], index_path: Path, host: str = "127.0.0.1", *, trusted: bool = False
) -> web.Application:
    """The application; raises `ConfigError` where there is no run.

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


def view(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold runs.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8600,
    index: Annotated[
        Path | None, typer.Option(help="File of the index; it is made where there is none.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = False,
    trust: Trust = False,
) -> None:
    """Look at runs and trajectories in the browser, live while they go on."""
    console = Console(highlight=False)
    app = make_app(runs, index or _default_index(), host, trusted=trust)
    if host not in ("127.0.0.1", "localhost", "::1"):
        console.print(
            f"[yellow]Everybody who reaches {host} can read these runs: there is no password.[/]"
        )
    try:
        asyncio.run(_serve(app, console, host, port, browser))
    except KeyboardInterrupt:
        console.print()


async def _serve(
    app: web.Application, console: Console, host: str, port: int, browser: bool
) -> None:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"cannot listen at {host}:{port}: {error}") from error
            raise ConfigError(
                f"port {port} of {host} is taken; name another with --port, or 0 for a free one"
            ) from error
        taken = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{taken}"
        console.print(f"{address}   Ctrl-C ends it.", markup=False, soft_wrap=True)
        if browser:
            webbrowser.open(address)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _default_index() -> Path:
    """In the user's cache folder: runs may lie where nobody else can write."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "agentgym-sdk" / "view.sqlite"
