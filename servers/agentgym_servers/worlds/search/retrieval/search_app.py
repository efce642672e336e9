"""`agentgym serve-retriever`: the ASGI application of a retriever."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentgym_env.errors import AgentGymError, BadRequest
from agentgym_env.request_bodies import BodyReader
from agentgym_env.wire import JSON, STATUS, ErrorBody, WireError
from agentgym_servers.host.app import App, Receive, Send, content_length, headers_of
from agentgym_servers.host.batches import ShortestFirst
from agentgym_servers.host.logs import configure_logs
from agentgym_servers.host.request_guard import (
    ALLOWED_HOST_HELP,
    RequestGuard,
    check_content_type,
    is_loopback,
)
from agentgym_servers.host.serving import listen, run_server
from agentgym_servers.worlds.search.retrieval.manifest import Manifest
from agentgym_servers.worlds.search.retrieval.passages import Hit, Retriever
from agentgym_servers.worlds.search.retrieval.remote import (
    PATH,
    Document,
    Query,
    Reply,
    ScoredDocument,
    ScoredReply,
)
from agentgym_servers.worlds.search.retrieval.retriever import IndexRetriever

logger = logging.getLogger(__name__)

MAX_HITS = 100_000
"""Most passages that one call may ask for, over all its queries."""
MAX_QUERIES = 4096
_SLICE = 16
"""Queries that are searched before a shorter call may go first."""

_METHODS = {PATH: "POST", "/health": "GET"}

_decode = msgspec.json.Decoder(Query).decode

_encode = msgspec.json.encode

_Answer = tuple[int, bytes]


def make_search_app(
    retriever: Retriever,
    health: dict[str, Any],
    *,
    guard: RequestGuard | None = None,
    topk: int = 3,
    max_body_bytes: int = 16 * 2**20,
    threads: int = 1,
) -> App:
    """The application; `topk` is for calls that name none, `health` what `/health` returns.

    Searches run in threads, so the event loop answers while they do.
    """
    guarded = guard or RequestGuard()
    bodies = BodyReader(max_body_bytes)
    searches = _Searches(retriever, threads)

    async def answer(scope: MutableMapping[str, Any], receive: Receive) -> _Answer | None:
        path = scope["path"]
        headers = headers_of(scope)
        if (error := guarded.check_headers(headers)) is not None:
            return _failed(STATUS[error.code], error.code, error.message)
        if path not in _METHODS:
            return _failed(404, "unknown_route", f"there is no {path[:100]}; POST to {PATH}")
        if scope["method"] != _METHODS[path]:
            return _failed(405, "wrong_method", f"{path} takes {_METHODS[path]}")
        body, held = await bodies.read(receive, content_length(headers))
        try:
            if body is None:
                return None
            if not isinstance(body, bytes):
                return _failed(STATUS[body.code], body.code, body.message)
            return await answer_body(path, scope["method"], headers, body)
        finally:
            if held:
                await bodies.give_back(held)

    async def answer_body(
        path: str, method: str, headers: Mapping[bytes, str], body: bytes
    ) -> _Answer:
        if len(body) > max_body_bytes:
            text = f"the body is above {max_body_bytes} bytes; ask in several calls"
            return _failed(413, "too_large", text)
        content_type = headers.get(b"content-type", "")
        error = check_content_type(method, body, content_type, (JSON,))
        if error is not None:
            return _failed(STATUS[error.code], error.code, error.message)
        if path == "/health":
            return 200, _encode(health)
        query = _read(body, topk)
        if not isinstance(query, Query):
            return query
        return await searches.answer(query)

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(searches, receive, send)
        elif (answered := await answer(scope, receive)) is not None:
            await _send(send, scope, *answered)

    return app


class _Searches:
    """Searches in threads; of the calls that wait, the one with the fewest queries goes first."""

    def __init__(self, retriever: Retriever, threads: int) -> None:
        self._retriever = retriever
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="search")
        self._places = ShortestFirst(threads)

    async def answer(self, query: Query) -> _Answer:
        """The answer to a valid query."""
        try:
            found: list[list[Hit]] = []
            count = len(query.queries)
            async with self._places.turn(count) as turn:
                for begin in range(0, count, _SLICE):
                    await turn.give_way(count - begin)
                    found += await self._search(query, begin)
            return _written(query, found)
        except AgentGymError as error:
            logger.warning("a search failed: %s", error)
            return _failed(502, "retriever_failed", str(error))

    def stop(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    async def _search(self, query: Query, begin: int) -> list[list[Hit]]:
        queries = query.queries[begin : begin + _SLICE]
        search = self._retriever.search
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, search, queries, query.topk or 1
        )


def _read(body: bytes, topk: int) -> Query | _Answer:
    """The query, its `topk` filled in; or the answer to a body without one."""
    try:
        query = _decode(body)
    except msgspec.ValidationError as error:
        return _failed(422, "bad_request", f"the body is not what {PATH} takes: {error}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _failed(400, "bad_request", f"the body is not JSON: {error}")
    query.topk = query.topk or topk
    if len(query.queries) > MAX_QUERIES:
        text = f"the call has more than {MAX_QUERIES} queries; ask in several calls"
        return _failed(413, "too_many_items", text)
    if len(query.queries) * query.topk > MAX_HITS:
        text = (
            f"{len(query.queries)} queries for {query.topk} passages each are more than "
            f"{MAX_HITS} passages; ask in several calls"
        )
        return _failed(422, "bad_request", text)
    return query


def _written(query: Query, found: list[list[Hit]]) -> _Answer:
    if query.return_scores:
        scored = [[ScoredDocument(_document(hit), hit.score) for hit in hits] for hits in found]
        return 200, _encode(ScoredReply(scored))
    return 200, _encode(Reply([[_document(hit) for hit in hits] for hits in found]))


def _document(hit: Hit) -> Document:
    return Document(id=hit.passage.id, contents=hit.passage.contents)


def _failed(status: int, code: str, message: str) -> _Answer:
    return status, _encode(ErrorBody(WireError(code, message)))


async def _send(send: Send, scope: MutableMapping[str, Any], status: int, content: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
    ]
    if status == 405:
        headers.append((b"allow", _METHODS[scope["path"]].encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _live(searches: _Searches, receive: Receive, send: Send) -> None:
    """Start with the server and stop with it."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    searches.stop()
    await send({"type": "lifespan.shutdown.complete"})


def serve_retriever(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.")] = 8000,
    topk: Annotated[
        int, typer.Option(help="Passages per query, for requests that do not set `topk`.")
    ] = 3,
    threads: Annotated[
        int | None, typer.Option(help="Maximum concurrent searches. Default: number of cores.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Encoder of a flat or hnsw index, if its folder was moved."),
    ] = None,
    allowed_host: Annotated[list[str] | None, typer.Option(help=ALLOWED_HOST_HELP)] = None,
    max_body_mb: Annotated[int, typer.Option(help="Maximum size of a request body, in MiB.")] = 16,
    log_json: Annotated[bool, typer.Option(help="Log as JSON lines.")] = False,
) -> None:
    """Serve a search index over HTTP.

    The API is that of Search-R1.
    """
    configure_logs(sys.stderr, logging.INFO, as_json=log_json)
    if not 1 <= topk <= MAX_HITS:
        raise BadRequest(f"--topk is 1 to {MAX_HITS}, got {topk}")
    if threads is not None and threads < 1:
        raise BadRequest(f"--threads is at least 1, got {threads}")
    retriever = IndexRetriever(index, encoder=encoder)
    app = make_search_app(
        retriever,
        health(retriever.manifest),
        guard=RequestGuard(host, allowed_host or ()),
        topk=topk,
        max_body_bytes=max_body_mb * 2**20,
        threads=threads or os.cpu_count() or 1,
    )
    if not is_loopback(host):
        logger.warning("%s is open to the network, and this server has no authentication", host)
    with listen(host, port) as listener:
        address = f"http://{host}:{listener.getsockname()[1]}"
        sys.exit(
            run_server(
                app, listener, when_ready=lambda: logger.info("serving %s on %s", index, address)
            )
        )


def health(manifest: Manifest) -> dict[str, Any]:
    """What `/health` returns of an index."""
    shown = ("backend", "passages", "versions", "corpus", "settings")
    return {"status": "ok", **{n: msgspec.to_builtins(getattr(manifest, n)) for n in shown}}
