"""The viewer's JSON API: the request handlers for runs, episodes, pictures and exports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from agentgym_env.errors import BadRequest
from agentgym_viewer.episodes import EpisodeReader
from agentgym_viewer.html_page import html_of
from agentgym_viewer.index import EpisodeIndex, EpisodeLocation
from agentgym_viewer.indexer import Indexer
from agentgym_viewer.pictures import NoPicture, Pictures
from agentgym_viewer.query import (
    adjacent,
    count_of,
    facets,
    facets_among,
    lines_of,
    page_of,
    played,
    query_of,
)
from agentgym_viewer.runs import Runs

_T = TypeVar("_T")

_RELATED = 200

_EPISODE = "/{run}/{file}/{start:[0-9]{1,18}}"


class Api:
    """The request handlers of a viewer."""

    def __init__(
        self, runs: Runs, index: EpisodeIndex, indexer: Indexer, *, trusted: bool = False
    ) -> None:
        self._runs = runs
        self._index = index
        self._indexer = indexer
        self._reader = EpisodeReader(index)
        self._pictures = Pictures(trusted=trusted)
        self._facets: tuple[int, dict[str, Any]] = (-1, {})

    def routes(self) -> list[web.RouteDef]:
        """The routes, all of them read-only."""
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
        """A version string that changes with the data, so that the page knows when to reload."""
        busy = not self._indexer.caught_up.is_set()
        return await _answer(lambda: {"version": self._runs.stamp(), "busy": busy})

    async def runs(self, request: web.Request) -> web.Response:
        """All runs with their overview data."""
        return await _answer(
            lambda: [
                {**self._runs.facts(name), "played": played(self._index, self._runs.ids[name])}
                for name in list(self._runs.paths)
            ]
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """A run's metrics."""
        name = self._run(request.query.get("run", ""))
        return await _answer(lambda: self._runs.metrics(name))

    async def facets(self, request: web.Request) -> web.Response:
        """The values of the filters, each counted among what the other filters leave."""
        asked = _asked(request)

        def found() -> dict[str, Any]:
            stamp, runs = self._index.stamp(), self._runs.ids
            if self._facets[0] != stamp:
                self._facets = (stamp, facets(self._index, list(runs.values())))
            counted = facets_among(self._index, runs, asked, self._facets[1])
            times = dict(map(tuple, counted["run"]))
            return counted | {"run": [[name, times.get(run, 0)] for name, run in runs.items()]}

        return await _answer(found)

    async def trajectories(self, request: web.Request) -> web.Response:
        """A page of the table."""
        asked = _asked(request)
        offset = _number(request, "offset", 0)
        limit = _number(request, "limit", 100)

        def found() -> dict[str, Any]:
            query = query_of(self._index, self._runs.ids, asked)
            rows = page_of(self._index, query, offset, limit)
            # The page already has the count of later rows.
            count = count_of(self._index, query) if offset == 0 else {}
            return {
                **count,
                "searches": self._index.finds_text,
                "rows": [self._public(row) for row in rows],
            }

        return await _answer(found)

    async def episode(self, request: web.Request) -> web.Response:
        """An episode, and the previous and next episode in the table."""
        name, location = await self._location(request)
        asked = _asked(request)

        def found() -> dict[str, Any]:
            query = query_of(self._index, self._runs.ids, asked)
            near = adjacent(self._index, query, location.id)
            return {
                **self._reader.page(self._runs.paths[name], location),
                "run": name,
                "file": location.name,
                "start": location.start,
                **{key: self._public(row) if row else None for key, row in near.items()},
            }

        return await _answer(found)

    async def related(self, request: web.Request) -> web.Response:
        """Other episodes of the same task in all runs, first those of the same group."""
        _, location = await self._location(request)

        def found() -> list[dict[str, Any]]:
            own = self._index.rows("SELECT * FROM episodes WHERE id = ?", (location.id,))[0]
            asked = {"task": [own["task"]], "env": [own["env"]], "sort": ["-step"]}
            query = query_of(self._index, self._runs.ids, asked)
            rows = page_of(self._index, query, 0, _RELATED)
            same = ("run", "name", "step", "grp")
            for row in rows:
                row["group_mate"] = own["grp"] >= 0 and all(row[k] == own[k] for k in same)
            rows.sort(key=lambda row: not row["group_mate"])
            return [self._public(row) for row in rows if row["id"] != location.id]

        return await _answer(found)

    async def text(self, request: web.Request) -> web.Response:
        """A full text of an episode."""
        name, location = await self._location(request)
        turn, field = _number(request, "turn", 0), request.query.get("field", "")
        found = await _off(lambda: self._reader.text(self._runs.paths[name], location, turn, field))
        return _json({"text": found})

    async def tokens(self, request: web.Request) -> web.Response:
        """The episode's tokens."""
        name, location = await self._location(request)
        return await _answer(lambda: self._reader.tokens(self._runs.paths[name], location))

    async def pictures(self, request: web.Request) -> web.Response:
        """The number of pictures, or the reason why there are none."""
        name, location = await self._location(request)

        def found() -> dict[str, Any]:
            episode = self._reader.read(self._runs.paths[name], location)
            if not self._pictures.draws(episode.env):
                return {"count": 0, "why": ""}
            try:
                return {"count": len(self._drawn(name, location)), "why": ""}
            except NoPicture as error:
                return {"count": 0, "why": str(error)}

        return await _answer(found)

    async def picture(self, request: web.Request) -> web.Response:
        """A picture as PNG."""
        name, location = await self._location(request)
        turn = _number(request, "turn", 0)
        try:
            drawn = await asyncio.to_thread(self._drawn, name, location)
            return web.Response(body=drawn[turn], content_type="image/png")
        except (NoPicture, IndexError) as error:
            raise web.HTTPNotFound(text=str(error)) from error

    async def export_json(self, request: web.Request) -> web.Response:
        """The episode's line in its file."""
        name, location = await self._location(request)
        body = await _off(lambda: self._reader.raw(self._runs.paths[name], location))
        return _download(body, "application/json", f"{location.name}-{location.start}.json")

    async def export_html(self, request: web.Request) -> web.Response:
        """The episode as a self-contained page."""
        name, location = await self._location(request)
        body = await _off(
            lambda: html_of(self._reader.read(self._runs.paths[name], location), name, location)
        )
        return _download(body.encode(), "text/html", f"{location.name}-{location.start}.html")

    async def export_lines(self, request: web.Request) -> web.StreamResponse:
        """All episodes that match the filters as JSON Lines, as in their files."""
        query = await _off(lambda: query_of(self._index, self._runs.ids, _asked(request)))
        response = web.StreamResponse(
            headers={"Content-Disposition": 'attachment; filename="trajectories.jsonl"'}
        )
        response.content_type = "application/x-ndjson"
        await response.prepare(request)
        places = lines_of(self._index, query)
        while (batch := await asyncio.to_thread(next, places, None)) is not None:
            for run, location in batch:
                line = await asyncio.to_thread(
                    self._reader.raw, self._runs.paths[self._runs.name_of(run)], location
                )
                await response.write(line)
        return response

    def _drawn(self, name: str, location: EpisodeLocation) -> list[bytes]:
        run = self._runs.paths[name]
        settings = self._runs.config(name).get("env_kwargs")
        key = (location.run, location.name, location.start)
        return self._pictures.pictures_of(key, self._reader.read(run, location), settings or {})

    def _run(self, name: str) -> str:
        if name not in self._runs.paths:
            raise web.HTTPNotFound(text=f"there is no run {name[:100]!r}")
        return name

    async def _location(self, request: web.Request) -> tuple[str, EpisodeLocation]:
        """The run and location of a URL, both from the index: paths are never built from a URL."""
        name, file = self._run(request.match_info["run"]), request.match_info["file"]
        start = int(request.match_info["start"])
        found = await asyncio.to_thread(self._index.location, self._runs.ids[name], file, start)
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
    """Run blocking work in a thread; `BadRequest` becomes status 400."""
    try:
        return await asyncio.to_thread(work)
    except BadRequest as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def _asked(request: web.Request) -> dict[str, list[str]]:
    return {key: request.query.getall(key) for key in request.query}


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise web.HTTPBadRequest(text=f"{name} must be at least 0, got {text[:100]!r}")
    return int(text)


def _download(body: bytes, kind: str, name: str) -> web.Response:
    # File names come from run folders: keep only characters that are safe in a header.
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    return web.Response(
        body=body,
        content_type=kind,
        charset="utf-8",
        headers={"Content-Disposition": f'attachment; filename="{plain}"'},
    )
