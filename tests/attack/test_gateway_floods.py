"""Strangers flood the gateway of a trainer: agents are answered, and checkpoints are saved."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from agentgym_env.connections import HEAD_S
from attacking import MIB, Crowd, files_limited_to, measured
from hosting import Served

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FILES = 1024
COUNT = 1100
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
KEYLESS = b"Authorization: Bearer none\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def gateway() -> Iterator[tuple[Served, str]]:
    """A gateway whose process may open `FILES` files, and a key."""
    with files_limited_to(FILES):
        served = Served(ROOT, module="tests.support.serve_gateway")
    served.address()
    key = re.search(r"^key (\S+)$", served.errors, re.MULTILINE)
    yield served, key[1]
    # Every checkpoint was saved.
    assert served.stop() == 0, served.errors


FLOODS: dict[str, Callable[[int], bytes]] = {
    "silence": lambda _: b"",
    "half a head": lambda _: CHAT + b"X-Part: 1\r\n",
    "a long half of a head": lambda _: (
        CHAT + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 600) for i in range(90))
    ),
    "a body without a key": lambda _: (
        CHAT + KEYLESS + b"Content-Length: 4000000\r\n\r\n" + b"[" * 50_000
    ),
    "chunks without a key": lambda _: (
        CHAT + KEYLESS + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 50_000
    ),
    "many requests at once": lambda _: (CHAT + KEYLESS + b"Content-Length: 0\r\n\r\n") * 200,
    "malformed heads": lambda _: b"GET / HTTP/1.1\r\n\r\n",
    "malformed bodies": lambda _: CHAT + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
    "each of these": lambda i: [CHAT, CHAT + KEYLESS, b"", b"GET / HTTP/1.1\r\n\r\n"][i % 4],
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_crowd_of_strangers_takes_nothing_from_agents_and_checkpoints(gateway, flood):
    server, key = gateway

    def begin() -> Crowd:
        return Crowd(server.address(), COUNT, FLOODS[flood])

    with measured(server, begin, "/v1/models", key) as crowd:
        chat = {"model": "policy", "messages": [{"role": "user", "content": "Begin."}]}
        reply = requests.post(
            f"{server.address()}/v1/chat/completions", json=chat, timeout=60,
            headers={"Authorization": f"Bearer {key}"},
        )  # fmt: skip
        assert reply.json()["choices"][0]["message"]["content"] == "I wait."
    sys.stdout.write(f"gateway: {crowd.made} connections with {flood}; agents were answered\n")


def test_a_head_that_never_ends_is_rejected(gateway):
    server, _ = gateway
    host, port = server.address().removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(CHAT)
        told = b""
        try:
            while not told:
                connection.sendall(b"X-A: " + b"a" * 4_000 + b"\r\n")
                connection.settimeout(0.01)
                try:
                    told = connection.recv(65_536)
                except TimeoutError:
                    connection.settimeout(60)
        except OSError:
            told = told or b"reset"
    assert told == b"reset" or b" 400 " in told.partition(b"\r\n")[0], told
    sys.stdout.write("gateway: a head without an end was rejected\n")


@pytest.mark.parametrize("part", [b"", CHAT, CHAT + KEYLESS + b"Content-Length: 9\r\n\r\n"])
def test_a_stranger_is_gone_after_a_while(gateway, part):
    server, _ = gateway
    host, port = server.address().removeprefix("http://").split(":")
    began = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(part)
        told = b""
        while more := connection.recv(65_536):
            told += more
    has_head = part.endswith(b"\r\n\r\n")
    assert told[9:12] == (b"401" if has_head else b"400")
    assert has_head or time.monotonic() - began > HEAD_S - 1
    sys.stdout.write(f"gateway: a connection with {len(part)} bytes was ended\n")


def test_agents_may_be_slow_and_send_much(gateway):
    server, key = gateway
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    address = f"{server.address()}/v1/chat/completions"

    def slowly() -> Iterator[bytes]:
        yield b'{"model": "policy", "messages": [{"role": "user", "content": "Begin."}]'
        time.sleep(HEAD_S + 1)
        yield b"}"

    assert requests.post(address, data=slowly(), headers=head, timeout=60).status_code == 200
    long = b'{"model": "policy", "messages": [{"role": "user", "content": "x"}]' + b" " * (7 * MIB)
    assert requests.post(address, data=long + b"}", headers=head, timeout=60).status_code == 200
    too_long = requests.post(address, data=long + b" " * (2 * MIB), headers=head, timeout=60)
    assert too_long.status_code == 413
