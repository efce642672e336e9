"""Reads the body of an HTTP message off a stream: by its length, in chunks, or to the end."""

from __future__ import annotations

import re
from asyncio import LimitOverrunError, StreamReader
from typing import Final

from agentgym_servers.web.front.message import Headers, Refused, quoted, values_of

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_MAX_TRAILERS: Final = 100


async def read_body(
    reader: StreamReader, headers: Headers, most: int, *, to_the_end: bool = False
) -> bytes:
    """The body that goes with a head; raises `Refused` 413 above `most` bytes, 400 if malformed.

    `to_the_end` is for replies: what gives no length lasts as long as the connection.
    """
    encodings = values_of(headers, "transfer-encoding")
    lengths = set(values_of(headers, "content-length"))
    if encodings:
        if encodings != ["chunked"]:
            raise Refused(501, f"The transfer encoding {quoted(','.join(encodings))} is not read.")
        if lengths:
            raise Refused(400, "A message is either chunked or has a Content-Length, not both.")
        return await _read_chunks(reader, most)
    if lengths:
        return await reader.readexactly(_length(lengths, most))
    if not to_the_end:
        return b""
    read = bytearray()
    while piece := await reader.read(65_536):
        read += piece
        _check(len(read), most)
    return bytes(read)


def _length(lengths: set[str], most: int) -> int:
    text = lengths.pop()
    if lengths or not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise Refused(400, f"The Content-Length {quoted(text)} is no single number.")
    _check(int(text), most)
    return int(text)


async def _read_chunks(reader: StreamReader, most: int) -> bytes:
    read = bytearray()
    while size := _chunk_size(await _read_line(reader)):
        _check(len(read) + size, most)
        read += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise Refused(400, "A chunk is longer than it says; send its size in hexadecimal.")
    for _ in range(_MAX_TRAILERS):
        if await _read_line(reader) == b"\r\n":
            return bytes(read)
    raise Refused(400, f"More than {_MAX_TRAILERS} trailers follow the chunks; send none.")


async def _read_line(reader: StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except LimitOverrunError as error:
        raise Refused(400, "A line between chunks does not end; send short ones.") from error


def _chunk_size(line: bytes) -> int:
    found = _SIZE.fullmatch(line)
    if found is None:
        raise Refused(400, f"{quoted(line.decode('latin-1'))} is no chunk's size.")
    return int(found[1], 16)


def _check(size: int, most: int) -> None:
    if size > most:
        raise Refused(413, f"The body has {size} bytes or more; at most {most} are read.")
