"""Worlds in processes of their own: a deadline for each step, kill, and restart.

A process holds many sessions and steps one at a time. Who outstays the deadline loses its
process, and with it every session in it: the culprit's reply says `deadline`, the others'
`unknown_session`, so that a client opens them anew and nothing is mixed up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from agentgym_env.errors import AgentGymError, BadRequest, ServerStartFailed, UnknownSplit
from agentgym_env.launch import child_environment, reported_failure
from agentgym_env.process_guard import end_group, guard
from agentgym_env.wire import EnvCard, RenewReply, RenewRequest, TaskList, WireError, decode
from agentgym_servers.host import routes
from agentgym_servers.host.batches import ReplyLimit, failed_replies
from agentgym_servers.host.channel import (
    DESCRIBE,
    FIGURES,
    Channel,
    Description,
    read_replies,
)
from agentgym_servers.host.codec import Codec
from agentgym_servers.host.logs import event
from agentgym_servers.host.metrics import Figures
from agentgym_servers.host.router import Router
from agentgym_servers.host.settings import ServeSettings

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 5.0
_FIGURES_TIMEOUT_S = 0.5


def world_pool(settings: ServeSettings) -> Router:
    """A service whose worlds live in `settings.workers` processes of their own."""
    processes = [WorldProcess(settings, index) for index in range(settings.workers)]
    session_store = _Described(processes[0])
    codec = Codec(
        session_store,
        token=settings.token,
        max_body_bytes=settings.max_body_bytes,
        max_items=settings.max_items,
    )
    return Router(codec, processes, count_codec=True)


class WorldProcess:
    """One process of worlds, as the server sees it."""

    def __init__(self, settings: ServeSettings, index: int) -> None:
        self.description: Description | None = None
        self._settings = settings
        self._index = index
        self._deadline_s = settings.step_timeout_s
        self._turn = asyncio.Lock()
        self._renewals: dict[str, Any] = {}
        """Renewals of leases that wait for a turn, by session."""
        self._renewing: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._restarts = 0
        self._last = Figures()
        self._past = Figures()  # what processes that have ended had counted, when last asked

    async def ask(self, path: str, requests: Sequence[Any]) -> list[Any]:
        """The replies to a batch, in order; one after another, each under its deadline.

        Between two items of a batch, others are answered.
        """
        if path == routes.RENEW.path:
            return self._renew(requests)
        replies: list[Any] = []
        limit = ReplyLimit(self._settings.workers)
        for place, request in enumerate(requests):
            if limit.reached:
                return replies + limit.rejected(path, requests[place:])
            async with self._turn:
                part = await self._ask_one(path, request)
            limit.add(path, part)
            replies += part
        return replies

    async def figures(self) -> Figures:
        """Its counters; for a busy process, those of the last query."""
        try:
            async with asyncio.timeout(_FIGURES_TIMEOUT_S), self._turn:
                body = await (await self._running()).ask(FIGURES, b"")
            self._last = decode(body, Figures)
        except (TimeoutError, ConnectionError, AgentGymError) as error:
            logger.debug("process %d told no figures: %s", self._index, error)
        return self._past + self._last + Figures(restarts=self._restarts)

    async def start(self) -> None:
        """Start the process and learn what it serves."""
        async with self._turn:
            body = await (await self._running()).ask(DESCRIBE, b"")
            self.description = decode(body, Description)

    async def stop(self) -> None:
        """Let it end its worlds; after a while, make it."""
        async with self._turn:
            await self._end(gently=True)

    def _renew(self, requests: Sequence[RenewRequest]) -> list[RenewReply]:
        """Take renewals, which wait for nobody: a step may outlast a lease."""
        self._renewals.update({request.session: request for request in requests})
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._send_renewals_in_turn())
        return [RenewReply(request.session, True) for request in requests]

    async def _send_renewals_in_turn(self) -> None:
        async with self._turn:
            await self._send_renewals()

    async def _send_renewals(self) -> None:
        renewals, self._renewals = list(self._renewals.values()), {}
        if not renewals or self._channel is None:
            return
        path = routes.RENEW.path
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._channel.ask(path, msgspec.json.encode(renewals))
        except TimeoutError:
            # It is busy with the end of a session, which hangs.
            await self._lose(path, renewals[0], "deadline", "its end took too long")
        except ConnectionError:
            logger.debug("process %d has ended, and its sessions with it", self._index)

    async def _ask_one(self, path: str, request: Any, *, again: bool = True) -> list[Any]:
        await self._send_renewals()
        try:
            channel = await self._running()
        except AgentGymError as error:
            event(logger, logging.ERROR, "world_not_made", message=str(error))
            return failed_replies(path, [request], "environment_error", str(error))
        try:
            async with asyncio.timeout(self._deadline_s):
                body = await channel.ask(path, msgspec.json.encode([request]))
        except TimeoutError:
            return await self._lose(
                path, request, "deadline",
                f"the environment took longer than {self._deadline_s:g} s; its process was killed "
                "(step_timeout_s of its class, --step-timeout of `agentgym serve`)",
            )  # fmt: skip
        except ConnectionError:
            lost = await self._lose(
                path, request, "environment_error", "the environment's process died"
            )
            # Perhaps it was killed while idle: the next one may open the session.
            if path == routes.SESSIONS.path and again:
                return await self._ask_one(path, request, again=False)
            return lost
        try:
            return read_replies(path, body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            text = "the environment's process sent an answer that cannot be read"
            return await self._lose(path, request, "environment_error", text)

    async def _lose(self, path: str, request: Any, code: str, text: str) -> list[Any]:
        """The process is of no more use: end it. The next call starts another."""
        # One that died is let die: its exit status tells how.
        status = await self._end(gently=code != "deadline")
        self._restarts += 1
        event(
            logger, logging.ERROR, "world_process_lost",
            process=self._index, code=code, exit_status=status,
        )  # fmt: skip
        if code == "environment_error":
            text = f"{text} ({_describe_exit(status)})"
        return failed_replies(path, [request], code, text)

    async def _running(self) -> Channel:
        if self._channel is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    # -P: the working directory must not shadow the standard library.
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "agentgym_servers.host.world_process",
                        str(theirs.fileno()),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # the server's own may be a report that somebody reads
                    pass_fds=[theirs.fileno()],
                    env=child_environment(),
                    # Ctrl-C is the server's to handle.
                    start_new_session=True,
                )
            guard.add(self._process.pid)
            threading.Thread(target=_outlive, args=(self._process.pid,), daemon=True).start()
            self._channel = Channel(*await asyncio.open_unix_connection(sock=ours))
            shared = msgspec.structs.replace(self._settings, token=None)
            try:
                async with asyncio.timeout(_START_TIMEOUT_S):
                    failure = await self._channel.ask(str(self._index), msgspec.json.encode(shared))
            except (TimeoutError, ConnectionError) as error:
                status = await self._end(gently=isinstance(error, ConnectionError))
                raise ServerStartFailed(
                    f"a process for {self._settings.env_id} did not start "
                    f"({_describe_exit(status)}); see the server's log"
                ) from error
            if failure:
                await self._end(gently=True)
                raise reported_failure(msgspec.json.decode(failure, type=dict[str, str]))
        return self._channel

    async def _end(self, *, gently: bool) -> int | None:
        """End the process and give its exit status."""
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        # Its sessions were not reaped; they are simply no more.
        self._past += msgspec.structs.replace(self._last, sessions=0)
        self._last = Figures()
        if channel is None or process is None:
            return None
        died = process.poll()
        await channel.close()
        if died is None and not gently:
            end_group(process.pid)
        try:
            return await asyncio.to_thread(process.wait, _END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            end_group(process.pid)
            return await asyncio.to_thread(process.wait)
        finally:
            end_group(process.pid)
            guard.remove(process.pid)


def _outlive(pid: int) -> None:
    """When a process has ended, end what it started: a copy of it would keep its channel open."""
    # It is not reaped here, so that its number stays its own. `waitid` is missing on older macOS.
    with contextlib.suppress(ChildProcessError, AttributeError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        end_group(pid)


class _Described:
    """The description of the environment, from the first process."""

    def __init__(self, process: WorldProcess) -> None:
        self._process = process

    def card(self) -> EnvCard:
        return self._description().card

    def task_list(self, split: str) -> TaskList:
        for tasks in self._description().tasks:
            if tasks.split == split:
                return tasks
        card = self.card()
        names = ", ".join(map(repr, (*card.splits, *card.selections)))
        raise UnknownSplit(f"no split {split!r}; available: {names}")

    def unsendable(self, reply: Any, error: Exception) -> Any:
        # It came as JSON, so this is a fault in the server itself, not in a world.
        text = f"the reply cannot be written: {type(error).__name__}"
        return type(reply)(session=reply.session, error=WireError("environment_error", text))

    def _description(self) -> Description:
        if self._process.description is None:
            raise BadRequest("the server has not started", code="shutting_down")
        return self._process.description


def _describe_exit(status: int | None) -> str:
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
