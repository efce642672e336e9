"""What the page asks: the questions' handlers. Files and SQLite are read beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from agentgym_env.errors import BadRequest
from agentgym_train.viewer.export import html_of, lines_of
from agentgym_train.viewer.index import Index, Place
from agentgym_train.viewer.indexer import Indexer
from agentgym_train.viewer.pictures import NoPicture, Pictures
from agentgym_train.viewer.runs import Runs
from agentgym_train.viewer.search import (
    count_of,
    facets,
    neighbours,
    page_of,
    played,
    query_of,
)
from agentgym_train.viewer.stored import Shelf

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
