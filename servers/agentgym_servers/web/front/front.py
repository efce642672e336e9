"""The front: one thread in which any number of doors stand."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from agentgym_env.errors import BadRequest
from agentgym_servers.web.front.door import Door
from agentgym_servers.web.front.gate import Gate
from agentgym_servers.web.front.limits import Limits

_BACKLOG = 64


class Front:
    """Opens doors, and serves all of them in one thread, which ends when the front is closed.

    Sites answer in well under a millisecond, so they are asked in that thread; what has to wait
    for another machine is awaited. A front is not carried over a fork.
    """

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._doors: set[Door] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="web-front")
        self._thread.daemon = True
        self._thread.start()

    def open_door(
        self,
        gate: Gate,
        listener: socket.socket | None = None,
        limits: Limits | None = None,
    ) -> Door:
        """Open a door, on a free port of 127.0.0.1 unless a listening socket is handed over."""
        listener = listener or listen_at("127.0.0.1", 0)
        with self._lock:
            if self._closed:
                listener.close()
                raise BadRequest("This front is closed; make another with Front().")
            door = Door(gate, listener, limits or Limits(), self._close_door)
            self._run(door.listen())
            self._doors.add(door)
        return door

    def close(self) -> None:
        """Close all doors and end the thread; once more does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _close_door(self, door: Door) -> None:
        with self._lock:
            if door in self._doors:
                self._doors.remove(door)
                self._run(door.shut())

    async def _shut(self) -> None:
        for door in self._doors:
            await door.shut()
        self._doors.clear()
        # It looks up the names of real sites, if there are any.
        await self._loop.shutdown_default_executor()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


def listen_at(host: str, port: int) -> socket.socket:
    """A listening socket; a port of 0 is any that is free."""
    try:
        return socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise BadRequest(
            f"Nothing can listen at {host}:{port} ({error.strerror}). Take a free port, and an "
            "address that this machine has."
        ) from error
