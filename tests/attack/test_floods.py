"""Requests that never end: other clients are answered, and memory stays bounded."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest
import requests

from agentgym_env.connections import HEAD_S, MAX_HEAD_BYTES
from attacking import MIB, POST, Crowd, files_limited_to, measured, under
from hosting import Served

pytestmark = pytest.mark.slow
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(params=["open", "with a token"])
def server(request, tmp_path) -> Iterator[Served]:
    words = ["worlds:Guess", "--port", "0"]
    if request.param != "open":
        (tmp_path / "token").write_text("secret-of-the-server")
        words += ["--token-file", str(tmp_path / "token")]
    served = Served(SUPPORT, *words)
    served.address()
    yield served
    assert served.stop() == 0


def test_a_head_that_never_ends(server):
    def sends(number: int) -> Iterator[bytes]:
        yield POST + b"X-Long: "
        while True:
            yield b"a" * 65_000

    with under(server, 8, sends) as attack:
        pass
    assert all(not a or a.startswith(b"HTTP/1.1 400") for a in attack.answers)


@pytest.mark.parametrize("ending", [b"", b"Content-Length: 9\r\n\r\n"], ids=["head", "body"])
def test_heads_and_bodies_that_stall_are_ended(server, ending):
    def sends(number: int) -> Iterator[bytes]:
        yield POST + b"X-Part: 1\r\n" + ending

    began = time.monotonic()
    with under(server, 100, sends) as attack:
        while len(attack.statuses()) < 100 and time.monotonic() - began < HEAD_S + 120:
            time.sleep(0.1)
    statuses = attack.statuses()
    assert len(statuses) == 100
    # Without its token, a request is answered before its body is read.
    assert set(statuses) in ({b"400"}, {b"401"})
    assert b"401" in statuses or time.monotonic() - began > HEAD_S - 1


def test_a_head_that_follows_an_early_reply(server):
    """The reply to a request is complete before its body comes, and then comes the next head."""
    early = POST.replace(b"localhost", b"foreign.example") + b"Content-Length: 3\r\n\r\n"

    def sends(number: int) -> Iterator[bytes]:
        yield early
        time.sleep(0.2)
        yield b"[1]GET / HTTP/1.1\r\nX-Long: "
        while True:
            yield b"a" * 65_000

    with under(server, 8, sends) as attack:
        began = time.monotonic()
        while len(attack.closed) < 8 and time.monotonic() - began < 120:
            time.sleep(0.1)
    assert len(attack.closed) == 8


def test_closing_sessions_with_long_names(server):
    name = b"x" * (15 * MIB)
    token = b"Authorization: Bearer secret-of-the-server\r\n"
    body = b'[{"session":"' + name + b'"}]'
    post = POST.replace(b"/v1/step", b"/v1/close") + token
    post += b"Content-Length: %d\r\n\r\n" % len(body) + body

    with under(server, 4, lambda _: repeat(post)) as attack:
        pass
    assert not any(b"HTTP/1.1 200" in answer for answer in attack.answers)


def test_trailers_that_never_end(server):
    def sends(number: int) -> Iterator[bytes]:
        yield POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
        while True:
            yield b"a:\r\n" * 15_000

    with under(server, 4, sends) as attack:
        pass
    assert set(attack.statuses()) <= {b"400", b"401"} and attack.statuses()


def test_framing_that_never_becomes_a_body_is_ended(server):
    def sends(number: int) -> Iterator[bytes]:
        yield POST + b"Transfer-Encoding: chunked\r\n\r\n1"
        while True:
            time.sleep(0.2)
            yield b";"

    began = time.monotonic()
    with under(server, 20, sends) as attack:
        while len(attack.closed) < 20 and time.monotonic() - began < HEAD_S + 120:
            time.sleep(0.1)
    assert len(attack.closed) == 20


def test_heads_of_many_fields(server):
    with under(server, 200, lambda _: iter([POST + b"a:\r\n" * 15_000])) as attack:
        pass
    assert set(attack.statuses()) == {b"400"}


@pytest.mark.parametrize("reads", [True, False])
def test_many_requests_at_once(server, reads):
    with under(server, 40, lambda _: iter([b"GET / HTTP/1.1\r\n\r\n" * 13_000]), reads=reads):
        pass


@pytest.mark.parametrize("number", [8, 1_000])
def test_large_replies_that_nobody_reads(server, number):
    token = b"Authorization: Bearer secret-of-the-server\r\n"
    # Each reply has an error for every item, a megabyte in all.
    body = b"[" + b",".join([b'{"session":"x","turn":0,"action":""}'] * 4096) + b"]"
    post = POST + token + b"Content-Length: %d\r\n\r\n" % len(body) + body

    with under(server, 200, lambda _: iter([post] * number), reads=False):
        pass


def test_a_few_requests_at_once_are_all_answered(server):
    name, port = server.address().removeprefix("http://").split(":")
    request = f"GET /health HTTP/1.1\r\nHost: {name}\r\n\r\n".encode()
    with socket.create_connection((name, int(port)), timeout=60) as connection:
        connection.sendall(request * 4)
        answered = b""
        while answered.count(b"HTTP/1.1 200") < 4:
            part = connection.recv(65_536)
            assert part, answered
            answered += part


def test_bodies_that_stall_before_their_end(server):
    size = 15 * MIB

    def sends(number: int) -> Iterator[bytes]:
        yield POST + b"Content-Length: %d\r\n\r\n" % size
        yield b"[" + b" " * (size - MIB)

    with under(server, 60, sends):
        pass


def test_bodies_of_unknown_length(server):
    def sends(number: int) -> Iterator[bytes]:
        yield POST + b"Transfer-Encoding: chunked\r\n\r\n"
        while True:
            yield b"10000\r\n" + b" " * 65_536 + b"\r\n"

    with under(server, 60, sends):
        pass


def test_a_long_head_and_a_large_body_are_still_served(server):
    token = {"Authorization": "Bearer secret-of-the-server"}
    answer = requests.post(
        f"{server.address()}/v1/sessions",
        data=b"[{}" + b" " * (14 * MIB) + b"]",
        headers={"Content-Type": "application/json", "X-Long": "a" * (MAX_HEAD_BYTES // 2)} | token,
        timeout=60,
    )
    assert answer.status_code == 200 and answer.json()[0]["session"], answer.text


@pytest.mark.parametrize("part", [b"", POST, POST + b"Content-Length: 9\r\n\r\n["])
def test_more_connections_than_the_server_may_open_files(tmp_path, part):
    with files_limited_to(1024):
        served = Served(SUPPORT, "worlds:Guess", "--port", "0")
    address = served.address()
    with measured(served, lambda: Crowd(address, 1100, lambda _: part)) as crowd:
        opened = requests.post(f"{address}/v1/sessions", json=[{}], timeout=60)
        assert opened.json()[0]["session"]
    sys.stdout.write(
        f"server: {crowd.made} connections with {len(part)} bytes; others were served\n"
    )
    assert served.stop() == 0
