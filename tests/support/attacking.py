"""Floods of a server, during which another client must be served."""

from __future__ import annotations

import resource
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

import psutil

from hosting import Served
from waiting import until

POST = b"POST /v1/step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MIB = 2**20

OTHER_CLIENT = """
import sys, time, psutil, requests
address, key, *pids = sys.argv[1:]
headers = {"Authorization": f"Bearer {key}"}
processes = [psutil.Process(int(pid)) for pid in pids]
def used():
    return [sum(p.cpu_times()[:2]) for p in processes]
slowest = work = 0.0
turn = 0
until = time.monotonic() + 4
with requests.Session() as session:
    while time.monotonic() < until:
        before, began = used(), time.monotonic()
        # A server that the flood holds up does not answer while it lasts.
        client = session if turn % 2 else requests
        assert client.get(address, headers=headers, timeout=120).status_code == 200
        turn += 1
        slowest = max(slowest, time.monotonic() - began)
        work = max(work, *(after - b for after, b in zip(used(), before)))
        time.sleep(0.02)
print(slowest, work)
"""
"""Prints its longest wait for an answer, and the most that a process of the server computed
meanwhile, both in seconds, in a process that does nothing else. Each second request comes on a new
connection."""


class Attack:
    """Connections that send what they are told to, in threads, until the attack ends."""

    def __init__(
        self, address: str, count: int, sends: Callable[[int], Iterator[bytes]], *, reads: bool
    ) -> None:
        host, port = address.removeprefix("http://").split(":")
        self.ended = threading.Event()
        self.answers = [b""] * count
        """What each connection was told so far."""
        self.closed: list[int] = []
        """The connections that the server has ended."""
        self._where, self._sends, self._reads = (host, int(port)), sends, reads
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
                self.closed.append(number)  # the server reads no more of it
            if not self._reads:
                self.ended.wait()
            while not self.ended.is_set():
                try:
                    part = connection.recv(65536)
                except TimeoutError:
                    continue
                except OSError:
                    break
                self.answers[number] += part
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
        """The first status that each connection was told."""
        return [answer[9:12] for answer in self.answers if len(answer) >= 12]

    def stop(self) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()


class Crowd:
    """Connections that send a few bytes and wait; one that is closed is opened anew."""

    def __init__(self, address: str, count: int, sends: Callable[[int], bytes]) -> None:
        host, port = address.removeprefix("http://").split("/")[0].split(":")
        self._where, self._count, self._sends = (host, int(port)), count, sends
        self._ended = threading.Event()
        self.made = 0
        """How many connections there were."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self.made >= count, "the crowd is not there")

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            while not self._ended.is_set():
                if len(selector.get_map()) < self._count:
                    self._come(selector)
                for key, _ in selector.select(0.0 if self.made < self._count else 0.05):
                    self._listen(selector, key.fileobj)
            for key in list(selector.get_map().values()):
                key.fileobj.close()

    def _come(self, selector: selectors.BaseSelector) -> None:
        connection = socket.socket()
        # Where the server's queue is full, the kernel tries again for a minute.
        connection.settimeout(0.2)
        try:
            connection.connect(self._where)
            connection.sendall(self._sends(self.made))
        except OSError:  # the server has closed it already
            connection.close()
        else:
            selector.register(connection, selectors.EVENT_READ)
        self.made += 1

    def _listen(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        try:
            told = connection.recv(65_536)
        except OSError:
            told = b""
        if not told:
            selector.unregister(connection)
            connection.close()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


@contextmanager
def files_limited_to(soft: int) -> Iterator[None]:
    """Processes that are started within may open so many files; this one may open more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))


@contextmanager
def under(
    server: Served, count: int, sends: Callable[[int], Iterator[bytes]], *, reads: bool = True
) -> Iterator[Attack]:
    """An attack during which another client is served and memory stays bounded."""
    with measured(server, lambda: Attack(server.address(), count, sends, reads=reads)) as attack:
        yield attack


A = TypeVar("A", Attack, Crowd)


@contextmanager
def measured(
    server: Served, begin: Callable[[], A], path: str = "/health", key: str = ""
) -> Iterator[A]:
    """An attack during which another client gets `path`, and memory stays bounded.

    How soon it is served is printed; that depends on the machine.
    """
    process = psutil.Process(server.process.pid)
    processes = [process, *process.children(recursive=True)]

    idle = [p.memory_info().rss for p in processes]

    def growth() -> int:
        """Of the process that has grown most."""
        return max(p.memory_info().rss - before for p, before in zip(processes, idle, strict=True))

    attack = begin()
    command = [sys.executable, "-c", OTHER_CLIENT, server.address() + path, key]
    command += [str(p.pid) for p in processes]
    most = 0
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            while other.poll() is None:
                most = max(most, growth())
                time.sleep(0.02)
            assert other.returncode == 0 and other.stdout is not None
            slowest, work = map(float, other.stdout.read().split())
        yield attack
    finally:
        attack.stop()
    sys.stdout.write(
        f"slowest answer {slowest:.2f} s, after {work:.2f} s of work; "
        f"memory of a process +{most / MIB:.0f} MiB\n"
    )
    assert most < 200 * MIB
