"""`--workers N`: N processes that each serve HTTP and a part of the sessions.

They listen on one port, which the kernel spreads connections over. A call for a session of
another process goes to it over a Unix socket, so any of them can be asked for any session.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from agentgym_env.wire import decode, encode
from agentgym_servers.host import routes
from agentgym_servers.host.batches import SLICE, failed_replies
from agentgym_servers.host.channel import (
    FIGURES,
    Answer,
    Ask,
    Channel,
    answer,
    answer_with,
    pack_frame,
    read_frame,
    read_replies,
    read_requests,
)
from agentgym_servers.host.heartbeat import Heartbeat
from agentgym_servers.host.inline_host import Host
from agentgym_servers.host.logs import configure_logs
from agentgym_servers.host.metrics import Figures
from agentgym_servers.host.protocols.dispatch import app_of
from agentgym_servers.host.request_guard import LimitedProtocol
from agentgym_servers.host.router import Router
from agentgym_servers.host.serving import listen, run_server
from agentgym_servers.host.sessions import SessionTable
from agentgym_servers.host.settings import ServeSettings, session_table

logger = logging.getLogger(__name__)

_GONE = "the process that held this session has ended; open another"


def cluster_service(
    settings: ServeSettings, index: int, folder: Path, table: SessionTable
) -> Router:
    """The service of process `index`; the processes find one another in `folder`."""
    host = Host(
        table,
        token=settings.token,
        max_body_bytes=settings.max_body_bytes,
        max_items=settings.max_items,
        processes=settings.workers,
    )
    partitions = [
        _Own(host, folder, i) if i == index else _Peer(folder, i) for i in range(settings.workers)
    ]
    return Router(host.codec, partitions, count_codec=False, concurrent=1)


class _Ledger:
    """What the process of a partition has counted, its predecessors included.

    It is kept in a file whenever it is told, so no counter ever falls: what a killed process
    counted since it was last asked is missing.
    """

    def __init__(self, folder: Path, index: int) -> None:
        self._path = folder / f"{index}.figures"

    def read(self) -> Figures | None:
        """What was last told, without open sessions; None if nothing was."""
        try:
            told = msgspec.json.decode(self._path.read_bytes(), type=Figures)
        except FileNotFoundError:
            return None
        return msgspec.structs.replace(told, sessions=0)

    def write(self, figures: Figures) -> None:
        """Keep what is told now."""
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(figures))
        new.replace(self._path)


class _Own:
    """This process's own sessions, which its peers may use too."""

    def __init__(self, host: Host, folder: Path, index: int) -> None:
        self._host = host
        self._socket_path = _socket_path(folder, index)
        self._ledger = _Ledger(folder, index)
        past = self._ledger.read()
        self._past = Figures() if past is None else past + Figures(restarts=1)
        self._server: asyncio.Server | None = None
        self._visitors: set[asyncio.StreamWriter] = set()
        self._answering: set[asyncio.Task[None]] = set()

    async def ask(self, path: str, requests: Sequence[Any]) -> list[Any]:
        return await self._host.ask(path, requests)

    async def figures(self) -> Figures:
        figures = self._past + await self._host.figures()
        self._ledger.write(figures)
        return figures

    async def start(self) -> None:
        await self._host.start()
        self._socket_path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._receive, self._socket_path)
        await self.figures()  # so that a successor knows it is one

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self.figures()
        for visitor in list(self._visitors):
            visitor.close()
        await self._host.stop()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._visitors.add(writer)
        try:
            while True:
                ask = msgspec.msgpack.decode(await read_frame(reader), type=Ask)
                if ask.path == FIGURES:
                    writer.write(pack_frame(Answer(ask.number, encode(await self.figures()))))
                    await writer.drain()
                elif ask.body.count(b"{") > SLICE:
                    # Others' questions are answered in between.
                    task = asyncio.create_task(self._answer_in_slices(ask, writer))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                else:
                    writer.write(answer(self._host.table, self._host.codec.figures, ask))
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            logger.debug("a peer hung up")
        finally:
            self._visitors.discard(writer)
            writer.close()

    async def _answer_in_slices(self, ask: Ask, writer: asyncio.StreamWriter) -> None:
        replies = await self._host.ask(ask.path, read_requests(ask))
        if not writer.is_closing():
            writer.write(answer_with(self._host.table, ask, replies))


class _Peer:
    """The sessions of another process."""

    def __init__(self, folder: Path, index: int) -> None:
        self._socket_path = _socket_path(folder, index)
        self._ledger = _Ledger(folder, index)
        self._channel: Channel | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, path: str, requests: Sequence[Any]) -> list[Any]:
        body = await self._ask(path, msgspec.json.encode(requests))
        if body is not None:
            return read_replies(path, body)
        code = "shutting_down" if path == routes.SESSIONS.path else "unknown_session"
        return failed_replies(path, requests, code, _GONE)

    async def figures(self) -> Figures:
        body = await self._ask(FIGURES, b"")
        return self._ledger.read() or Figures() if body is None else decode(body, Figures)

    async def start(self) -> None:
        """A peer is called when it is needed."""

    async def stop(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def _ask(self, path: str, body: bytes) -> bytes | None:
        """The answer's body, or None if the process has ended."""
        async with self._connecting:
            if self._channel is not None and self._channel.has_ended:
                # The process that replaces it may serve already.
                await self._channel.close()
                self._channel = None
            if self._channel is None:
                try:
                    self._channel = Channel(*await asyncio.open_unix_connection(self._socket_path))
                except OSError:
                    return None
            channel = self._channel
        try:
            return await channel.ask(path, body)
        except ConnectionError:
            if self._channel is channel:
                self._channel = None
            await channel.close()
            return None


def _socket_path(folder: Path, index: int) -> Path:
    return folder / f"{index}.sock"


class Orders(Struct, frozen=True):
    """The orders of one process of the cluster."""

    settings: ServeSettings
    index: int
    folder: str
    """Where the processes find one another."""


def main() -> None:
    """Serve until the supervisor stops this process or ends."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    settings = orders.settings
    report = os.dup(1)
    os.dup2(2, 1)
    configure_logs(sys.stderr, settings.log_level, as_json=settings.log_json)
    LimitedProtocol.max_unread_bytes //= settings.workers
    heartbeat = Heartbeat(report)
    table = session_table(settings, orders.index)
    app = app_of(cluster_service(settings, orders.index, Path(orders.folder), table), settings)
    with listen(settings.host, settings.port, shared=True) as listener:
        sys.exit(
            run_server(
                app,
                listener,
                max_socket_bytes=settings.max_socket_bytes,
                when_ready=lambda: heartbeat.serve(table.time_limit),
                follow_parent=True,
            )
        )


if __name__ == "__main__":
    main()
