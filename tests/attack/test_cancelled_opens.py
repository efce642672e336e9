"""Clients that open a session and are gone before they have read its name leave none open."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from hosting import Served, sessions_become
from waiting import until

SUPPORT = Path(__file__).parents[1] / "support"
COUNT = 200
ROW = json.dumps({"responses_create_params": {"input": []}}).encode()
MCP_RESET = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "reset",
            "arguments": {},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
).encode()
MODERN = (
    b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: reset\r\n"
    b"Accept: application/json, text/event-stream\r\n"
)


def post(path: str, body: bytes, fields: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + fields + b"Content-Length: %d\r\n\r\n" % len(body) + body


OPENS = {
    "agentgym textcraft": ("textcraft", "agentgym", post("/create", b"{}")),
    "agentgym babyai": ("babyai", "agentgym", post("/create", b"")),
    "nemo-gym": ("worlds:Guess", "nemo-gym", post("/reset", ROW)),
    "nemo-gym in a rollout": ("worlds:Guess", "nemo-gym", post("/ng-rollout/7/reset", ROW)),
    "mcp": ("worlds:Guess", "mcp", post("/mcp", MCP_RESET, MODERN)),
    "openenv": ("worlds:Guess", "openenv", post("/reset", b"{}")),
}


@pytest.fixture(params=OPENS)
def opened(request):
    """A server, and the request that opens a session of it."""
    world, protocol, ask = OPENS[request.param]
    pytest.importorskip("mcp") if protocol == "mcp" else None
    served = Served(SUPPORT, world, "--protocol", protocol, "--port", "0")
    served.name = request.param
    served.address()
    yield served, ask
    assert served.stop() == 0


@pytest.fixture
def served_babyai():
    served = Served(SUPPORT, "babyai", "--protocol", "agentgym", "--port", "0")
    yield served.address()
    assert served.stop() == 0


def at_once(connection: socket.socket, ask: bytes) -> None:
    """The client is gone before the server has seen its request."""
    connection.sendall(ask)


def before_it_reads(connection: socket.socket, ask: bytes) -> None:
    """The reply has arrived, and the client is gone without having read it."""
    connection.sendall(ask)
    assert connection.recv(1, socket.MSG_PEEK)


def several_at_once(connection: socket.socket, ask: bytes) -> None:
    """Four requests come at once; the client is gone when it has read the first reply's status."""
    connection.sendall(ask * 4)
    assert connection.recv(12) == b"HTTP/1.1 200"


def amid_the_reply(connection: socket.socket, ask: bytes) -> None:
    """The client reads a part of the reply."""
    connection.sendall(ask)
    assert connection.recv(20).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [at_once, before_it_reads, several_at_once, amid_the_reply])
def test_cancelled_opens_leave_no_session(opened, leaves: Callable[[socket.socket, bytes], None]):
    server, ask = opened
    host, port = server.address().removeprefix("http://").split(":")
    for _ in range(COUNT // 4 if leaves is several_at_once else COUNT):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            leaves(connection, ask)
    assert sessions_become(server.address(), 0)
    how = leaves.__name__.replace("_", " ")
    sys.stdout.write(f"{server.name}: {COUNT} opens cancelled {how}, no session is open\n")


@pytest.mark.slow
def test_what_a_client_has_read_stays_open_when_its_connection_ends(opened):
    """Clients without keep-alive open a connection for each request."""
    server, ask = opened
    host, port = server.address().removeprefix("http://").split(":")
    ask = ask.replace(b"Content-Type", b"Connection: close\r\nContent-Type", 1)
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(ask)
            while connection.recv(65_536):
                pass
    # A session of OpenEnv ends with its request.
    assert sessions_become(server.address(), 0 if server.name == "openenv" else 20)


def test_a_session_that_was_used_stays_open_when_the_connection_that_opened_it_is_reset(
    served_babyai,
):
    host, port = served_babyai.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(post("/create", b""))
        until(lambda: b"}" in connection.recv(65_536, socket.MSG_PEEK))
        told = connection.recv(65_536, socket.MSG_PEEK)
        number = json.loads(told.partition(b"\r\n\r\n")[2])["id"]
        # The bytes stay unread, so that the end is a reset.
        start = {"id": number, "data_idx": 0}
        requests.post(f"{served_babyai}/reset", json=start, timeout=60)
    for action in ("turn left", "turn right"):
        turn = {"id": number, "action": action}
        reply = requests.post(f"{served_babyai}/step", json=turn, timeout=60).json()
        assert "observation" in reply, reply
