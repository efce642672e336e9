"""One client's connection to a door: its requests in order, each answered through a gate.

Whatever a client sends ends in an answer or in the end of its own connection, nobody else's.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter

import msgspec

from agentgym_servers.web.front.body import read_body
from agentgym_servers.web.front.gate import Gate
from agentgym_servers.web.front.limits import Limits
from agentgym_servers.web.front.message import (
    HttpRequest,
    Refused,
    read_request_head,
    refusal,
    reply_bytes,
)
from agentgym_servers.web.front.tunnel import tunnel

logger = logging.getLogger(__name__)


class Connection:
    """A client of a door."""

    def __init__(
        self, reader: StreamReader, writer: StreamWriter, gate: Gate, limits: Limits
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._gate = gate
        self._limits = limits

    async def serve(self) -> None:
        """Answer until the client has no more to ask, asks badly or is idle for too long."""
        try:
            while await self._serve_one():
                # Requests that already lie in the buffer are read without waiting; let others in.
                await asyncio.sleep(0)
        except (OSError, IncompleteReadError) as error:
            logger.debug("a client is gone: %s", error)

    async def _serve_one(self) -> bool:
        """Answer one request; whether another may follow."""
        request: HttpRequest | None = None
        try:
            request = await self._read_head()
            if request is None:
                return False
            if request.method == "CONNECT":
                await tunnel(
                    self._reader, self._writer, self._gate.tunnel_to(request.target), self._limits
                )
                return False
            request = await self._read_body(request)
        except Refused as error:
            to_head = request is not None and request.method == "HEAD"
            reply = refusal(error.status, error.words)
            await self._write(reply_bytes(reply, to_head=to_head, keeps_alive=False))
            await self._linger()
            return False
        await self._write(await self._answer(request))
        return request.keeps_alive

    async def _read_head(self) -> HttpRequest | None:
        async with asyncio.timeout(self._limits.idle_s):
            # Empty lines before a request are skipped, as HTTP/1.1 has it.
            while (first := await self._reader.read(1)) in (b"\r", b"\n"):
                pass
        if not first:
            return None
        try:
            async with asyncio.timeout(self._limits.head_s):
                rest = await self._reader.readuntil(b"\r\n\r\n")
        except LimitOverrunError as error:
            most = self._limits.head_bytes
            raise Refused(431, f"The request's head is longer than {most} bytes.") from error
        except TimeoutError as error:
            raise Refused(408, f"The request's head took over {self._limits.head_s} s.") from error
        return read_request_head(first + rest)

    async def _read_body(self, request: HttpRequest) -> HttpRequest:
        if request.header("expect").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self._limits.body_s):
                body = await read_body(self._reader, request.headers, self._limits.body_bytes)
        except TimeoutError as error:
            raise Refused(408, f"The request's body took over {self._limits.body_s} s.") from error
        return msgspec.structs.replace(request, body=body) if body else request

    async def _answer(self, request: HttpRequest) -> bytes:
        to_head, keeps_alive = request.method == "HEAD", request.keeps_alive
        try:
            reply = await self._gate.answer(request)
            return reply_bytes(reply, to_head=to_head, keeps_alive=keeps_alive)
        except Refused as error:
            reply = refusal(error.status, error.words)
        except Exception:
            # A page that fails is the client's to see and ours to mend; the door stays open.
            logger.exception("no answer to %s %.200s", request.method, request.target)
            reply = refusal(500, "The site failed on this request; its log says why.")
        return reply_bytes(reply, to_head=to_head, keeps_alive=keeps_alive)

    async def _write(self, reply: bytes) -> None:
        self._writer.write(reply)
        async with asyncio.timeout(self._limits.write_s):
            await self._writer.drain()

    async def _linger(self) -> None:
        """Read on for a moment: closing over unread bytes would reset the reply away."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        async with asyncio.timeout(self._limits.linger_s):
            while await self._reader.read(65_536):
                pass
