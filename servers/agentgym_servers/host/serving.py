"""The server process: from settings to a running server, and to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import uvicorn

from agentgym_env.connections import accept_backlog
from agentgym_env.errors import BadRequest
from agentgym_servers.host.app import START_ERROR, App, Service
from agentgym_servers.host.inline_host import Host
from agentgym_servers.host.isolation import world_pool
from agentgym_servers.host.protocols.dispatch import app_of
from agentgym_servers.host.request_guard import LimitedProtocol
from agentgym_servers.host.settings import ServeSettings, session_table

logger = logging.getLogger(__name__)

GRACE_S = 5
"""Seconds that running steps have to finish when the server is stopped."""
_FAILED = "Application startup failed. Exiting."
"""What uvicorn logs when the application does not start."""


def make_service(settings: ServeSettings) -> App:
    """The application of a server that is one HTTP process."""
    service: Service
    if settings.isolated:
        service = world_pool(settings)
    else:
        table = session_table(settings)
        service = Host(
            table,
            token=settings.token,
            max_body_bytes=settings.max_body_bytes,
            max_items=settings.max_items,
        )
    return app_of(service, settings)


def run_server(
    app: App,
    listener: socket.socket,
    *,
    max_socket_bytes: int | None = None,
    when_ready: Callable[[], None] | None = None,
    follow_parent: bool = False,
) -> int:
    """Serve until SIGTERM, SIGINT or the parent's end; the exit status.

    Raises what the service's `start` raised.
    `max_socket_bytes` is the longest message of a WebSocket; None serves no WebSockets.
    """
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        backlog=accept_backlog(),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here asks who the client is
        timeout_graceful_shutdown=GRACE_S,
        lifespan="on",
        ws="none" if max_socket_bytes is None else _socket_protocol(),
        ws_max_size=max_socket_bytes or 0,
        ws_per_message_deflate=False,  # it costs more than the network saves here
    )
    # The error itself is raised below.
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg != _FAILED)
    server = _Server(config, when_ready)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(_release_port, listener))
    if follow_parent:
        threading.Thread(target=_follow_parent, args=(server,), daemon=True).start()
    # uvicorn ends the program itself when the application cannot start.
    with contextlib.suppress(SystemExit):
        server.run(sockets=[listener])
    if not server.started:
        error = server.lifespan.state.get(START_ERROR)
        if error is not None:
            raise error
        return 1
    logger.info("stopped")
    return 0


def _socket_protocol() -> type[asyncio.Protocol]:
    """Uvicorn's with limits; only a server of WebSockets needs the package `websockets`."""
    from agentgym_servers.host.socket_guard import LimitedSocket

    return LimitedSocket


class _Server(uvicorn.Server):
    """Says when it is ready, and takes a signal for the ordinary way to stop that it is."""

    def __init__(self, config: uvicorn.Config, when_ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._when_ready = when_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._when_ready is not None:
            self._when_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal again after a graceful end.
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; `shared` lets other processes of this server listen on the same port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, port), family=family, backlog=accept_backlog(), reuse_port=shared
        )
    except OSError as error:
        raise BadRequest(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from error


def _release_port(listener: socket.socket) -> None:
    """In a process that a world has forked: it must not keep the port."""
    if listener.fileno() >= 0:
        os.close(listener.fileno())  # `close` waits for uvloop


def _follow_parent(server: uvicorn.Server) -> None:
    """End the server when the parent's end of stdin closes, however the parent ended."""
    # Not sys.stdin.buffer: Python aborts if a thread is inside a buffered reader when it exits.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    server.should_exit = True
    time.sleep(GRACE_S + 1)
    # A world that never returns holds the event loop; nobody is left to wait for it.
    os.kill(os.getpid(), signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
