"""Carries bytes between a client and the host that it was allowed to CONNECT to."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter

from agentgym_servers.web.front.limits import Limits
from agentgym_servers.web.front.message import Refused

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def tunnel(
    reader: StreamReader, writer: StreamWriter, place: tuple[str, int], limits: Limits
) -> None:
    """Connect a client to a place until both sides have said all, or either is idle too long."""
    far_reader, far_writer = await connect(place, limits)
    try:
        writer.write(_ESTABLISHED)
        async with asyncio.TaskGroup() as both:
            both.create_task(_carry(reader, far_writer, limits.idle_s))
            both.create_task(_carry(far_reader, writer, limits.idle_s))
    except* (ConnectionError, TimeoutError) as group:
        # Which side broke off does not matter: to the client its connection is gone.
        raise ConnectionResetError(f"The tunnel to {place} broke: {group.exceptions}") from group
    finally:
        far_writer.transport.abort()


async def connect(place: tuple[str, int], limits: Limits) -> tuple[StreamReader, StreamWriter]:
    """Connect to a real site; raises `Refused` 502 or 504 where it cannot be reached."""
    host, port = place
    try:
        async with asyncio.timeout(limits.forward_s):
            return await asyncio.open_connection(host.strip("[]"), port, limit=limits.head_bytes)
    except TimeoutError as error:
        raise Refused(504, f"{host}:{port} took over {limits.forward_s} s to connect.") from error
    except OSError as error:
        raise Refused(502, f"{host}:{port} cannot be reached: {error}.") from error


async def _carry(reader: StreamReader, writer: StreamWriter, idle_s: float) -> None:
    while True:
        async with asyncio.timeout(idle_s):
            piece = await reader.read(65_536)
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
