"""Requests that never end: other clients are answered within a second, and memory stays bounded."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
import requests

from agentgym_servers.host.request_guard import HEAD_S, MAX_HEAD_BYTES
from hosting import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SUPPORT = Path(__file__).parents[1] / "support"
POST = b"POST /v1/step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MIB = 2**20


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


class Attack:
    """Connections that send what they are told to, in threads, until the attack ends."""

    def __init__(self, address: str, count: int, sends: Callable[[int], Iterator[bytes]]) -> None:
        host, port = address.removeprefix("http://").split(":")
        self.ended = threading.Event()
        self.answers: list[bytes] = []
        self._where, self._sends = (host, int(port)), sends
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        with closing(socket.create_connection(self._where)) as connection:
            connection.settimeout(0.05)
            try:
                for part in self._sends(number):
                    connection.sendall(part) if len(part) < 70_000 else self._push(connection, part)
                    if self.ended.is_set():
                        break
            except OSError:
                pass  # the server has closed the connection, or reads no more of it
            while not self.ended.is_set():
                try:
                    part = connection.recv(65536)
                except TimeoutError:
                    continue
                except OSError:
                    break
                self.answers.append(part)
                if not part:
                    break

    def _push(self, connection: socket.socket, part: bytes) -> None:
        """Send a long text as far as it is read."""
        left = memoryview(part)
        while left and not self.ended.is_set():
            try:
                left = left[connection.send(left[:65536]) :]
            except TimeoutError:
                continue

    def statuses(self) -> list[bytes]:
        """The statuses of the answers so far."""
        return [answer[9:12] for answer in self.answers if answer.startswith(b"HTTP/1.1 ")]

    def stop(self) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def under(server: Served, count: int, sends: Callable[[int], Iterator[bytes]]) -> Iterator[Attack]:
    """An attack during which another client is served in time and memory stays bounded."""
    process = psutil.Process(server.process.pid)
    idle = process.memory_info().rss
    attack = Attack(server.address(), count, sends)
    slowest, most = 0.0, idle
    try:
        until = time.monotonic() + 4
        with requests.Session() as other:
            while time.monotonic() < until:
                began = time.monotonic()
                assert other.get(f"{server.address()}/health", timeout=20).status_code == 200
                slowest = max(slowest, time.monotonic() - began)
                most = max(most, process.memory_info().rss)
                time.sleep(0.02)
        yield attack
    finally:
        attack.stop()
    sys.stdout.write(f"slowest answer {slowest:.2f} s, memory +{(most - idle) / MIB:.0f} MiB\n")
    assert slowest < 1
    assert most - idle < 200 * MIB


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
