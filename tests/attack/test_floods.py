"""Requests that never end: other clients are answered within a second, and memory stays bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from agentgym_servers.host.request_guard import HEAD_S, MAX_HEAD_BYTES
from attacking import MIB, POST, under
from hosting import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
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
        while len(attack.statuses()) < 100 and time.monotonic() - began < HEAD_S + 10:
            time.sleep(0.1)
    statuses = attack.statuses()
    assert len(statuses) == 100
    # Without its token, a request is answered before its body is read.
    assert set(statuses) in ({b"400"}, {b"401"})
    assert b"401" in statuses or time.monotonic() - began > HEAD_S - 1


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
