"""HTTP/1.1 messages as values: a request's head read, a reply written.

Knows nothing about sockets, hosts or sites.
"""

from __future__ import annotations

import re
from asyncio import LimitOverrunError, StreamReader
from html import escape
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from agentgym_env.errors import AgentGymError

Headers: TypeAlias = tuple[tuple[str, str], ...]

MAX_URL: Final = 8_000

_MAX_HEADERS: Final = 100

_MAX_QUOTED: Final = 200

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_TARGET: Final = re.compile(r"[\x21-\x7e]+")

_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

_ABSOLUTE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)")

_AUTHORITY: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")

_MAX_TRAILERS: Final = 100

_BOUNDARY: Final = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)

_FILENAME: Final = re.compile(
    rb'filename\*?\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\r\n]*))', re.IGNORECASE
)


class HttpRequest(msgspec.Struct, frozen=True):
    """A request as it came; a gate interprets its target."""

    method: str
    target: str
    """Absolute (`http://shop.test/p/4?x=1`), of one host (`/p/4?x=1`), or `host:port`."""
    headers: Headers = ()
    body: bytes = b""
    keeps_alive: bool = True
    """Whether the client wants to ask more over this connection."""

    def header(self, name: str) -> str:
        """The first value of a header, by its name in lower case; empty where there is none."""
        return header_of(self.headers, name)

    @property
    def path(self) -> str:
        """The decoded path of a target of one host."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> str:
        """The text behind the question mark, as it came."""
        return self.target.partition("?")[2]


class HttpReply(msgspec.Struct, frozen=True):
    """What a client is answered."""

    status: int
    headers: Headers = ()
    body: bytes = b""


class Address(NamedTuple):
    """Where a request is to go."""

    host: str
    """In lower case."""
    port: int
    target: str
    """What to ask that host for, such as `/p/4?x=1`."""


class Refused(AgentGymError):
    """A request is answered with an error."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


def header_of(headers: Headers, name: str) -> str:
    """The first value of a header, by its name in lower case; empty where there is none."""
    return next((value for key, value in headers if key.lower() == name), "")


def values_of(headers: Headers, name: str) -> list[str]:
    """The comma-separated values of all headers of a name, in lower case and without spaces."""
    listed = ",".join(value for key, value in headers if key.lower() == name)
    return [value for part in listed.lower().split(",") if (value := part.strip())]


def read_request_head(head: bytes) -> HttpRequest:
    """Read the bytes up to the empty line; raises `Refused` for what is no HTTP/1 request."""
    first, *rest = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _TARGET.fullmatch(words[1]):
        raise Refused(400, f"{quoted(first)} is no request line; send 'GET http://... HTTP/1.1'.")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(505, f"The version {quoted(version)} is not spoken here; use HTTP/1.1.")
    if len(target) > MAX_URL:
        raise Refused(414, f"The URL has {len(target)} characters; at most {MAX_URL} are read.")
    headers = read_headers(rest)
    wishes = values_of(headers, "connection") + values_of(headers, "proxy-connection")
    keeps = "keep-alive" in wishes if version == "HTTP/1.0" else "close" not in wishes
    return HttpRequest(method, target, headers, keeps_alive=keeps)


def read_headers(lines: list[str]) -> Headers:
    """Read header lines; raises `Refused` for too many or malformed ones, folded ones included."""
    if len(lines) > _MAX_HEADERS:
        raise Refused(431, f"There are {len(lines)} headers; send at most {_MAX_HEADERS}.")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Refused(400, f"{quoted(line)} is no header; send 'Name: value'.")
        headers.append((name, value.strip(" \t")))
    return tuple(headers)


def reply_bytes(reply: HttpReply, *, to_head: bool, keeps_alive: bool) -> bytes:
    """The reply as it is sent; to HEAD, with the length of the body but without the body."""
    lines = [f"HTTP/1.1 {reply.status} {_phrase(reply.status)}"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    if reply.status not in (204, 304) and not header_of(reply.headers, "content-length"):
        lines.append(f"Content-Length: {len(reply.body)}")
    lines.append(f"Connection: {'keep-alive' if keeps_alive else 'close'}")
    if any("\r" in line or "\n" in line or "\0" in line for line in lines):
        raise ValueError(f"A reply's headers have a line break in them: {lines!r:.500}")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head if to_head or reply.status in (204, 304) else head + reply.body


def refusal(status: int, words: str) -> HttpReply:
    """A page with the reason why there is no other."""
    page = f"<html><head><title>{status}</title></head><body><p>{escape(words)}</p></body></html>"
    return HttpReply(status, (("Content-Type", "text/html; charset=utf-8"),), page.encode())


def quoted(text: str) -> str:
    """What a client sent as an error message shows it: cut short, and on one line."""
    return repr(text[:_MAX_QUOTED])


def read_absolute(target: str) -> Address:
    """Read `http://host[:port][/path]`; raises `Refused` for anything else."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise Refused(
            400, f"{quoted(target)} is not an absolute http address; this port is a proxy."
        )
    scheme, authority, rest = found.groups()
    if scheme.lower() != "http":
        raise Refused(403, f"{quoted(target)} is out of bounds: only http addresses are open.")
    host, port = read_authority(authority, 80)
    return Address(host, port, rest if rest.startswith("/") else f"/{rest}")


def read_authority(authority: str, default_port: int | None = None) -> tuple[str, int]:
    """Read `host[:port]`, without user names; raises `Refused` for anything else."""
    found = _AUTHORITY.fullmatch(authority)
    port = default_port if found is None or found[2] is None else int(found[2])
    if found is None or port is None or not 0 < port < 65_536:
        raise Refused(400, f"{quoted(authority)} is no host with a port, such as shop.test:80.")
    return found[1].lower(), port


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


def refuse_files(request: HttpRequest) -> None:
    """Raise `Refused` 415 for a multipart body with a file in it, or that cannot be read.

    A field for a file that was left empty has an empty name, and passes.
    """
    kind = request.header("content-type")
    if not request.body or not kind.lower().lstrip().startswith("multipart/"):
        return
    if request.header("content-encoding"):
        raise Refused(415, "A compressed form is not forwarded; send it as it is.")
    boundary = _BOUNDARY.search(kind)
    if boundary is None:
        raise Refused(415, f"{quoted(kind)} names no boundary, so the form cannot be checked.")
    mark = b"--" + (boundary[1] or boundary[2]).encode("latin-1")
    for part in request.body.split(mark):
        head = re.split(rb"\r?\n\r?\n", part, maxsplit=1)[0]
        for name in _FILENAME.finditer(head):
            if (name[1] or name[2] or b"").strip():
                raise Refused(415, f"The form has a file in it, {name[0][:100]!r}: no uploads.")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


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
