"""Connections to other hosts, and the limits of a listener's connections."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass

from agentgym_servers.web.front.message import Refused

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one listener's connections."""

    head_bytes: int = 32 * 1024
    """Longest head of a request or of a forwarded reply; beyond it is 431, or 502."""
    body_bytes: int = 2**20
    """Longest body of a request; beyond it is 413."""
    reply_bytes: int = 16 * 2**20
    """Longest body of a forwarded reply; beyond it is 502."""
    connections: int = 64
    """Most clients at once; a browser opens at most 32 connections to a proxy."""
    idle_s: float = 330.0
    """Wait for the next request. Longer than Chromium's own 300 s, so that it is the browser that
    gives up a connection and a form is never sent over one that closes at that moment."""
    head_s: float = 10.0
    """From a request's first byte to the end of its head."""
    body_s: float = 30.0
    """From the end of a request's head to the end of its body."""
    write_s: float = 30.0
    """For a client to take in a reply."""
    linger_s: float = 5.0
    """For a client to take in a reply that ends the connection amid its request."""
    forward_s: float = 60.0
    """For a real site to answer; beyond it is 504."""


async def tunnel(
    reader: StreamReader, writer: StreamWriter, place: tuple[str, int], limits: Limits
) -> None:
    """Connect a client to a place until both sides have sent all, or either is idle too long."""
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
