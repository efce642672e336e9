"""Requests that come before the reply to an earlier one: nothing of them is lost or held late."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from agentgym_env import connections
from agentgym_servers.host.request_guard import LimitedProtocol
from hosting import HttpServer, Served

late = threading.Event()
"""Whether the application has a body `slow`, and `HEAD_S` has passed since."""
sent = threading.Event()
"""Whether the client has sent all, for which the application waits then."""


async def app(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if body == b"slow":
        # Whatever was to happen after `HEAD_S` has happened before this ends, however slowly.
        await asyncio.sleep(2 * connections.HEAD_S)
        late.set()
        await asyncio.to_thread(sent.wait, 120)
    fields = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """To a server of the application."""
    # The app needs no sessions.
    server = HttpServer(None, app, http=LimitedProtocol, lifespan="off")
    name, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((name, int(port)), timeout=120) as client:
        yield client
    server.stop()


def post(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def replies(client: socket.socket, until: bytes) -> bytes:
    found = b""
    while not found.endswith(until):
        part = client.recv(65_536)
        assert part, found
        found += part
    return found


def test_a_body_that_the_server_does_not_read_yet_is_not_late(connection, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    first, second = post(b"slow"), post(b"second")
    # The head of the second request arrives with the first, its body later.
    connection.sendall(first + second[:-6])
    assert late.wait(120)
    connection.sendall(second[-6:])
    sent.set()
    found = replies(connection, b"second")
    assert found.count(b"HTTP/1.1 200") == 2 and b"slow" in found


def test_large_requests_at_once_are_answered_in_order(connection):
    bodies = [bytes([letter]) * 300_000 for letter in b"abcdefgh"]
    sender = threading.Thread(target=lambda: connection.sendall(b"".join(map(post, bodies))))
    sender.start()
    found = replies(connection, bodies[-1])
    sender.join()
    assert found.count(b"HTTP/1.1 200") == 8
    places = [found.index(body) for body in bodies]
    assert places == sorted(places)


def test_a_request_is_not_carried_out_once_its_connection_is_rejected():
    served = Served(Path(__file__).parents[1] / "support", "worlds:Guess", "--port", "0")
    name, port = served.address().removeprefix("http://").split(":")
    opens = (
        b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 4\r\n\r\n[{}]"
    )
    for rest in (b"garbage\r\n\r\n", opens * 11):
        with socket.create_connection((name, int(port)), timeout=60) as client:
            client.sendall(opens + rest)
            while client.recv(65_536):
                pass
    health = requests.get(f"{served.address()}/health", timeout=60).json()
    assert health["sessions"] == 0
    assert served.stop() == 0
