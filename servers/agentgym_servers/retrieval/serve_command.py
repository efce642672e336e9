"""`agentgym serve-retriever`: an index behind HTTP, until it is told to end."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentgym_env.errors import BadRequest
from agentgym_servers.logs import configure_logs
from agentgym_servers.request_guard import ALLOWED_HOST_HELP, RequestGuard, is_loopback
from agentgym_servers.retrieval.manifest import Manifest
from agentgym_servers.retrieval.retriever import IndexRetriever
from agentgym_servers.retrieval.search_app import MAX_HITS, make_search_app
from agentgym_servers.serving import listen, run_server

logger = logging.getLogger(__name__)


def serve_retriever(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    topk: Annotated[int, typer.Option(help="Passages for a call that does not say.")] = 3,
    threads: Annotated[
        int | None, typer.Option(help="Searches side by side. Default: one a core.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Of a dense index, if not where it was made.")
    ] = None,
    allowed_host: Annotated[list[str] | None, typer.Option(help=ALLOWED_HOST_HELP)] = None,
    max_body_mb: Annotated[int, typer.Option(help="Largest request body, in MiB.")] = 16,
    log_json: Annotated[bool, typer.Option(help="Log JSON lines.")] = False,
) -> None:
    """Serve an index over HTTP, on Search-R1's route."""
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
        logger.warning("%s is open to the network, and no token is asked for here", host)
    with listen(host, port) as listener:
        address = f"http://{host}:{listener.getsockname()[1]}"
        sys.exit(
            run_server(
                app, listener, when_ready=lambda: logger.info("serving %s on %s", index, address)
            )
        )


def health(manifest: Manifest) -> dict[str, Any]:
    """What `/health` tells of an index."""
    told = ("backend", "passages", "versions", "corpus", "settings")
    return {"status": "ok", **{n: msgspec.to_builtins(getattr(manifest, n)) for n in told}}
