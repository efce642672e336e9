"""Large batches and replies that nobody reads, and servers that send too much or too slowly."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest
import requests

from agentgym_env.client.transports import (
    MAX_REPLY_BYTES,
    Answer,
    AsyncHttpTransport,
    Call,
    HttpTransport,
)
from agentgym_env.errors import EnvironmentLost
from agentgym_servers.host.batches import MAX_REPLY_CHARS
from attacking import POST, Attack, under
from hosting import Served
from retrieving import FACTS, bm25_index, served_index, zipf_passages, zipf_queries

pytestmark = pytest.mark.slow
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(params=["--inline", "--isolate", "--workers 2"])
def server(request) -> Iterator[Served]:
    served = Served(SUPPORT, "worlds:Heavy", "--port", "0", *request.param.split())
    served.address()
    yield served
    assert served.stop() == 0


def post(address: str, route: str, items: list[dict]) -> list[dict]:
    answer = requests.post(f"{address}/v1/{route}", json=items, timeout=120)
    return answer.json()


def sessions(address: str, count: int) -> list[dict]:
    opened = [{"session": r["session"]} for r in post(address, "sessions", [{}] * count)]
    assert all("error" not in r for r in post(address, "reset", opened))
    return opened


def request_of(route: str, items: list[dict]) -> bytes:
    body = json.dumps(items).encode()
    head = POST.replace(b"/v1/step", f"/v1/{route}".encode())
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_batches_that_take_long(server):
    """Each of 30 clients asks for 4,000 steps; who asks for a few does not wait for them."""
    named = sessions(server.address(), 9)
    many = [{**named[0], "turn": turn, "action": "wait"} for turn in range(1, 4001)]
    with under(server, 30, lambda _: iter([request_of("step", many)])):
        for count in (8, 9):
            replies = post(server.address(), "expert", named[:count])
            assert all(reply["action"] == "wait" for reply in replies)


def test_replies_that_are_not_read(server):
    """Each of 60 clients asks for 4 GB, and reads nothing."""
    named = sessions(server.address(), 64)
    text = request_of("actions", named * 64)

    def sends(number: int) -> Iterator[bytes]:
        return chain([text], repeat(b"", 100))

    with under(server, 60, sends, reads=False):
        pass


def test_the_reply_to_a_batch_is_limited_and_nothing_is_lost(server):
    named = sessions(server.address(), 64)
    replies = post(server.address(), "actions", named)
    answered = [reply for reply in replies if "error" not in reply]
    rejected = [reply for reply in replies if "error" in reply]
    assert len(answered) < 64 and {r["error"]["code"] for r in rejected} == {"too_large"}
    assert sum(len(a) for r in answered for a in r["actions"]) < MAX_REPLY_CHARS + 18 * 10**6

    many = sessions(server.address(), 1200)
    steps = [{**each, "turn": 1, "action": "wait"} for each in many]
    replies = post(server.address(), "step", steps)
    rejected = [s for s, r in zip(steps, replies, strict=True) if "error" in r]
    assert 0 < len(rejected) < 800
    again = post(server.address(), "step", rejected)
    assert all(len(reply["observation"]) == 20_000 for reply in again)


def many_searches(queries: list[str]) -> bytes:
    body = json.dumps({"queries": queries, "topk": 20}).encode()
    head = POST.replace(b"/v1/step", b"/retrieve")
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_calls_with_many_searches_hold_up_nobody_else(tmp_path):
    index = bm25_index(tmp_path, [*FACTS, *zipf_passages(5_000)])
    text = many_searches(zipf_queries(4096))
    with served_index(index) as server:
        with under(server, 20, lambda _: iter([text])):
            pass
        many = {"queries": ["a"] * 4097}
        assert (
            requests.post(f"{server.address()}/retrieve", json=many, timeout=60).status_code == 413
        )


def test_a_search_does_not_wait_for_calls_with_many_that_came_before(tmp_path):
    index = bm25_index(tmp_path, [*FACTS, *zipf_passages(5_000)])
    # Each call has some hundred slices, of which the search waits for one or two.
    text = many_searches([passage.text for passage in zipf_passages(4096, words=64)])
    sent = threading.Semaphore(0)

    def sends(number: int) -> Iterator[bytes]:
        yield text
        sent.release()

    with served_index(index) as server:
        attack = Attack(server.address(), 20, sends, reads=True)
        try:
            assert all(sent.acquire(timeout=60) for _ in range(20))
            reply = requests.post(
                f"{server.address()}/retrieve", json={"queries": ["python"]}, timeout=300
            )
            assert not any(attack.answers), "it waited for a call that came before it"
            assert reply.status_code == 200
        finally:
            attack.stop()


@contextmanager
def hostile(sends: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    """A server that answers every connection with what `sends` yields."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with closing(connection):
            connection.recv(65536)
            try:
                for part in sends():
                    connection.sendall(part)
                    if ended.is_set():
                        break
            except OSError:
                pass  # the client has hung up

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # the listener is closed
                threading.Thread(target=serve, args=(connection,)).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def asked(address: str, kind: str, timeout_s: float) -> Answer:
    if kind == "sync":
        transport = HttpTransport(address, timeout_s=timeout_s, retries=0)
        with closing(transport):
            return transport.send(Call("/v1/env"))

    async def ask() -> Answer:
        transport = AsyncHttpTransport(address, timeout_s=timeout_s, retries=0)
        try:
            return await transport.send(Call("/v1/env"))
        finally:
            await transport.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_client_reads_no_reply_that_never_ends(kind, chunked):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    part = b" " * 2**20

    def endless() -> Iterator[bytes]:
        if chunked:
            return chain(
                [head + b"Transfer-Encoding: chunked\r\n\r\n"],
                repeat(b"100000\r\n" + part + b"\r\n"),
            )
        return chain([head + b"Content-Length: 9999999999\r\n\r\n"], repeat(part))

    def dripping() -> Iterator[bytes]:
        yield head + (
            b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: 900\r\n\r\n"
        )
        for _ in range(600):
            yield b"1\r\n \r\n" if chunked else b" "
            time.sleep(0.1)  # the attack: each byte within the timeout of a read

    with hostile(endless) as address, pytest.raises(EnvironmentLost, match=str(MAX_REPLY_BYTES)):
        asked(address, kind, 150)
    with hostile(dripping) as address, pytest.raises(EnvironmentLost, match="within 2 s"):
        asked(address, kind, 2)
