"""WebSockets with messages that do not end or are not read: memory stays bounded."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import pytest

from attacking import MIB, under
from hosting import Served, sessions_become

pytest.importorskip("websockets", reason="needs websockets: the extra `openenv`")

from websockets.sync.client import connect

pytestmark = pytest.mark.slow
SUPPORT = Path(__file__).parents[1] / "support"
HELLO = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
TEXT, CONT, PING, FIN = 1, 0, 9, 128


def frame(kind: int, content: bytes = b"") -> bytes:
    """A frame of a client; its mask is zero."""
    size = len(content)
    if size < 126:
        head = bytes([kind, 128 | size])
    elif size < 65_536:
        head = bytes([kind, 254]) + size.to_bytes(2, "big")
    else:
        head = bytes([kind, 255]) + size.to_bytes(8, "big")
    return head + bytes(4) + content


@pytest.fixture
def server() -> Iterator[Served]:
    served = Served(SUPPORT, "worlds:Guess", "--protocol", "openenv", "--port", "0")
    served.address()
    yield served
    # The sockets are gone, and so are their sessions.
    assert sessions_become(served.address(), 0)
    assert served.stop() == 0


def plays(server: Served) -> None:
    """An ordinary client plays an episode, with a long message in fragments."""
    address = server.address().replace("http", "ws") + "/ws"
    with connect(address) as client:
        client.send(json.dumps({"type": "reset", "data": {"task": "5"}}))
        assert json.loads(client.recv(timeout=60))["type"] == "observation"
        text = json.dumps({"type": "step", "data": {"message": "5"}}) + " " * 900_000
        client.send(text[i : i + 1000] for i in range(0, len(text), 1000))
        assert json.loads(client.recv(timeout=60))["data"]["reward"] == 1.0


def fragments(content: bytes) -> Iterator[bytes]:
    """A message without an end."""
    yield frame(TEXT)
    yield from repeat(frame(CONT, content) * (60_000 // (len(content) + 6)))


LONG = frame(TEXT | FIN, b'{"type": "step", "data": {"message": "' + b"x" * 1_000_000 + b'"}}')
FLOODS: dict[str, tuple[int, bool, Callable[[], Iterator[bytes]]]] = {
    "unfinished messages": (600, True, lambda: iter([frame(TEXT, b" " * (MIB - 60_000))])),
    "unfinished frames": (600, True, lambda: iter([frame(TEXT | FIN, b" " * MIB)[:-60_000]])),
    "long messages, and then nothing": (600, True, lambda: iter([LONG])),
    "empty fragments": (20, True, lambda: fragments(b"")),
    "fragments of a byte": (20, True, lambda: fragments(b" ")),
    "many empty messages": (20, False, lambda: repeat(frame(TEXT | FIN) * 10_000)),
    "unread pongs": (20, False, lambda: repeat(frame(PING | FIN, b"x" * 125) * 400)),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_sockets_that_never_finish_hold_little(server, flood):
    count, reads, parts = FLOODS[flood]

    def sends(number: int) -> Iterator[bytes]:
        yield HELLO
        time.sleep(0.5)
        yield from parts()

    with under(server, count, sends, reads=reads) as attack:
        plays(server)
    sys.stdout.write(f"openenv: {count} sockets, {flood}: {len(attack.closed)} were ended\n")


def test_a_message_of_many_fragments_or_a_short_break_is_answered(server):
    plays(server)
    host, port = server.address().removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(HELLO)
        told = b""
        while b"\r\n\r\n" not in told:
            told += client.recv(65_536)
        message = json.dumps({"type": "reset", "data": {"task": "5"}}).encode()
        client.sendall(frame(TEXT))
        for letter in message:
            client.sendall(frame(CONT) + frame(CONT, bytes([letter])) + frame(PING | FIN, b"!"))
        time.sleep(1.0)
        client.sendall(frame(CONT | FIN))
        told = b""
        while b"observation" not in told:
            part = client.recv(65_536)
            assert part, told
            told += part
