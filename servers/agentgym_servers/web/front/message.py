"""HTTP/1.1 messages as values: a request's head read, a reply written.

Knows nothing about sockets, hosts or sites.
"""

from __future__ import annotations

import re
from html import escape
from http import HTTPStatus
from typing import Final, TypeAlias
from urllib.parse import unquote

import msgspec

from agentgym_env.errors import AgentGymError

Headers: TypeAlias = tuple[tuple[str, str], ...]

MAX_URL: Final = 8_000
_MAX_HEADERS: Final = 100
_MOST_QUOTED: Final = 200
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET: Final = re.compile(r"[\x21-\x7e]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Refused(AgentGymError):
    """A request is answered with an error instead of with what it asked for."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


class HttpRequest(msgspec.Struct, frozen=True):
    """A request as it came; what its target means is for a gate to say."""

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
        """What stands behind the question mark, as it came."""
        return self.target.partition("?")[2]


class HttpReply(msgspec.Struct, frozen=True):
    """What a client is answered."""

    status: int
    headers: Headers = ()
    body: bytes = b""


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
    """A page that says why there is no other."""
    page = f"<html><head><title>{status}</title></head><body><p>{escape(words)}</p></body></html>"
    return HttpReply(status, (("Content-Type", "text/html; charset=utf-8"),), page.encode())


def quoted(text: str) -> str:
    """What a client sent as an error message shows it: cut short, and on one line."""
    return repr(text[:_MOST_QUOTED])


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
