"""`agentgym serve`: one environment behind HTTP, until it is told to end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_env.registration import env_class
from agentgym_env.text_env import TextEnv
from agentgym_servers.app import make_app
from agentgym_servers.host import Host
from agentgym_servers.sessions import SessionTable

try:
    import uvicorn
except ModuleNotFoundError as error:
    raise MissingExtra("serving needs uvicorn: pip install 'agentgym-sdk[serve]'") from error

logger = logging.getLogger(__name__)

_GRACE_S = 5


def serve(
    env_id: Annotated[str, typer.Argument(help="An environment's id, or module:Class.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token that clients must send.")
    ] = None,
    max_sessions: Annotated[int, typer.Option(help="Most sessions at once.")] = 16_384,
    session_ttl: Annotated[float, typer.Option(help="Seconds a session may stand idle.")] = 3600.0,
    max_body_mb: Annotated[int, typer.Option(help="Largest request body, in MiB.")] = 16,
    env_kwargs: Annotated[
        str, typer.Option(help="The environment's own settings, as a JSON object.")
    ] = "{}",
    entry_point: Annotated[str | None, typer.Option(hidden=True)] = None,
    embedded: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Serve an environment over HTTP."""
    report = _take_over_stdout() if embedded else None
    logging.basicConfig(
        level=logging.WARNING if embedded else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    table = SessionTable(
        _env_maker(entry_point or env_id, _parse_kwargs(env_kwargs)),
        env_id=env_id,
        max_sessions=max_sessions,
        ttl_s=session_ttl,
        version=_sdk_version(),
    )
    service = Host(
        table,
        token=None if token_file is None else _read_token(token_file),
        max_body_bytes=max_body_mb * 2**20,
    )
    if token_file is None and not _is_loopback(host):
        logger.warning("%s is open to the network without a token; see --token-file", host)
    with _listen(host, port) as listener:
        _run(service, listener, report)


def _run(service: Host, listener: socket.socket, report: TextIO | None) -> None:
    """Serve until SIGTERM, SIGINT or, when embedded, until the parent is gone."""
    config = uvicorn.Config(
        make_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        ws="none",
    )
    server = uvicorn.Server(config)
    address, port = listener.getsockname()[:2]
    logger.info("serving %s on http://%s:%d", service.table.card().env, address, port)
    if report is not None:
        # The socket listens already: a call made before the loop runs waits in its backlog.
        report.write(json.dumps({"port": port}) + "\n")
        report.close()
        threading.Thread(target=_follow_parent, args=(server,), daemon=True).start()
    # After a graceful end uvicorn raises the signal again: Ctrl-C is an ordinary way to stop.
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _take_over_stdout() -> TextIO:
    """Keep stdout for the one line the parent reads; whatever else prints goes to stderr."""
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return report


def _follow_parent(server: uvicorn.Server) -> None:
    """End the server when the parent's end of stdin closes, however the parent ended."""
    while sys.stdin.buffer.read(4096):
        pass
    server.should_exit = True
    time.sleep(_GRACE_S + 1)
    # A world that never returns holds the event loop; nobody is left to wait for it.
    os.kill(os.getpid(), signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise BadRequest(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from error
    return listener


def _env_maker(entry_point: str, kwargs: dict[str, Any]) -> Any:
    env_type = env_class(entry_point)

    def make_env() -> TextEnv:
        return env_type(**kwargs)

    return make_env


def _parse_kwargs(text: str) -> dict[str, Any]:
    try:
        kwargs = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRequest(f"--env-kwargs is not JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise BadRequest(f"--env-kwargs is a JSON object, got {text}")
    return kwargs


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadRequest(f"cannot read the token file {path}: {error.strerror}") from error
    if not token or not token.isascii() or not token.isprintable():
        raise BadRequest(f"the token file {path} must hold one line of printable ASCII")
    return token


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _sdk_version() -> str:
    try:
        return version("agentgym-sdk")
    except PackageNotFoundError:
        return ""
