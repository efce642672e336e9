"""Connections to a listener: kept, shared out, and held to their bounds; clients that misbehave."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import psutil
import pytest
from listener_client import ask, connect, place, read_exactly, rest_of, send, status_of
from web_shop import TinySession

from agentgym_env.errors import BadRequest
from agentgym_servers.web.front.forward_gate import session_gate
from agentgym_servers.web.front.front import Front, listen_at
from agentgym_servers.web.front.tunnel import Limits
from agentgym_servers.web.sites.site import SiteSession

GET = b"GET http://tiny.test/cart HTTP/1.1\r\nHost: tiny.test\r\n\r\n"
LAST = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
POST = b"POST http://tiny.test/echo HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"


@pytest.fixture
def front():
    with Front() as front:
        yield front


@pytest.fixture
def open_listener(front):
    def open_listener(**limits):
        gate = session_gate(TinySession(), ["tiny.test"])
        return front.open_listener(gate, limits=Limits(**limits))

    return open_listener


@pytest.fixture
def listener(open_listener):
    return open_listener()


def read_head(client):
    """The head of an answer, to its empty line."""
    read = b""
    while not read.endswith(b"\r\n\r\n"):
        read += read_exactly(client, 1)
    return read


def read_one(client):
    """One answer with a Content-Length off a connection that goes on."""
    head = read_head(client)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + read_exactly(client, length)


def has_ended(client):
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_a_connection_is_kept_for_more_requests(listener):
    with connect(listener) as client:
        answers = set()
        for _ in range(3):
            client.sendall(GET)
            answers.add(read_one(client))
    assert len(answers) == 1
    assert b"Connection: keep-alive" in answers.pop()


def test_requests_that_come_at_once_are_answered_in_order(listener):
    paths = [b"one", b"two", b"three", b"four"]
    asked = b"".join(GET.replace(b"/cart", b"/" + path) for path in paths)
    told = send(listener, asked + LAST)
    assert told.count(b"HTTP/1.1 200 OK") == 5
    found = [told.index(b"<p>Nothing is at " + path) for path in paths]
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("request_", "kept"),
    [
        (GET.replace(b"1.1\r\n", b"1.0\r\n"), False),
        (GET.replace(b"1.1\r\n", b"1.0\r\nConnection: keep-alive\r\n"), True),
        (GET.replace(b"1.1\r\n", b"1.1\r\nConnection: Close\r\n"), False),
        (GET.replace(b"1.1\r\n", b"1.1\r\nProxy-Connection: keep-alive\r\n"), True),
    ],
)
def test_a_client_says_whether_it_has_more_to_ask(listener, request_, kept):
    told = send(listener, request_ + LAST)
    assert told.count(b"HTTP/1.1 200 OK") == (2 if kept else 1)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\nx\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET http://tiny.test/ x HTTP/1.1\r\n\r\n", 400),
        (b"GET  HTTP/1.1\r\n\r\n", 400),
        (b"G\x00T http://tiny.test/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://tiny.test/\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET http://tiny.test/ HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET http://tiny.test/ HTTP/1.1\r\nName : value\r\n\r\n", 400),
        (b"GET http://tiny.test/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET http://tiny.test/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 400),
        (b"GET http://tiny.test/ HTTP/1.1\r\nA: \x00\r\n\r\n", 400),
        (b"GET http://tiny.test/ HTTP/3.0\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET http://tiny.test/" + b"a" * 8000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET http://tiny.test/ HTTP/1.1\r\nA: " + b"b" * 40_000 + b"\r\n\r\n", 431),
        (b"GET http://tiny.test/ HTTP/1.1\r\nA: " + b"b" * 4_000_000, 431),
        (b"GET http://tiny.test/ HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (POST + b"Content-Length: x\r\n\r\n", 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length: +1\r\n\r\n", 400),
        (POST + b"Content-Length: \xb2\r\n\r\n", 400),
        (POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\na=", 400),
        (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\na=1", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 40_000, 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n", 413),
        (POST + b"Content-Length: 1048577\r\n\r\n" + b"a" * 1_048_577, 413),
    ],
)
def test_bad_requests_are_told_so_and_end_their_connection(listener, data, status):
    told = send(listener, data)
    assert status_of(told) == status
    assert b"Connection: close" in told
    assert told.count(b"HTTP/1.1 ") == 1
    assert ask(listener, "http://tiny.test/cart").status == 200


def test_a_body_of_just_the_most_bytes_is_read(open_listener):
    listener = open_listener(body_bytes=10)
    assert (
        status_of(
            send(listener, POST + b"Connection: close\r\nContent-Length: 10\r\n\r\na=34567890")
        )
        == 200
    )
    assert status_of(send(listener, POST + b"Content-Length: 11\r\n\r\n")) == 413


def test_a_body_may_come_in_chunks(listener):
    chunks = b"2;x=y\r\na=\r\n3\r\n1&b\r\n0\r\nTrailer: x\r\n\r\n"
    told = send(
        listener, POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    )
    assert b'"form": {"a": ["1"], "b": [""]}' in told


def test_empty_lines_before_a_request_are_skipped(listener):
    assert status_of(send(listener, b"\r\n\r\n" + LAST)) == 200


def test_a_client_that_waits_to_be_told_to_go_on_is_told(listener):
    with connect(listener) as client:
        client.sendall(
            POST + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 3\r\n\r\n"
        )
        assert read_head(client) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"a=1")
        assert b'"form": {"a": ["1"]}' in rest_of(client)


def test_clients_that_say_half_of_it_hold_up_nobody(listener):
    halves = [b"", b"G", GET[:-1], POST + b"Content-Length: 9\r\n\r\na="]
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(listener)) for _ in halves]
        for client, half in zip(clients, halves, strict=True):
            client.sendall(half)
        assert ask(listener, "http://tiny.test/cart").status == 200
        clients[2].sendall(b"\n")
        assert read_one(clients[2]).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("limits", "data", "told"),
    [
        ({"idle_s": 0.02}, b"", b""),
        ({"head_s": 0.02}, b"GET http://", b"HTTP/1.1 408"),
        ({"body_s": 0.02}, POST + b"Content-Length: 9\r\n\r\na=", b"HTTP/1.1 408"),
    ],
)
def test_a_client_that_is_too_slow_loses_its_connection(open_listener, limits, data, told):
    assert send(open_listener(linger_s=0.02, **limits), data)[:12] == told


@pytest.mark.slow
def test_a_client_that_takes_nothing_in_loses_its_connection(open_listener):
    listener = open_listener(write_s=0.02, linger_s=0.02)
    with connect(listener) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(OSError):
            while True:
                client.sendall(GET * 1000)
    assert ask(listener, "http://tiny.test/cart").status == 200


def test_a_listener_takes_in_a_bounded_number_of_clients(open_listener):
    listener = open_listener(connections=2)
    with connect(listener) as first, connect(listener) as second:
        for client in (first, second):
            client.sendall(GET)
            read_one(client)
        with connect(listener) as third:
            assert has_ended(third)
        first.close()
        second.sendall(GET)
        assert read_one(second).startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_amid_everything_costs_nothing(listener):
    for data in (b"", b"GET", GET, GET * 50, POST + b"Content-Length: 9\r\n\r\na="):
        with connect(listener) as client:
            client.sendall(data)
    assert ask(listener, "http://tiny.test/cart").status == 200


def test_a_closed_listener_takes_its_clients_along_and_frees_its_port(front, listener):
    other = front.open_listener(session_gate(SiteSession({}, {}), []))
    with connect(listener) as idle, connect(listener) as midway:
        midway.sendall(GET[:9])
        listener.close()
        assert has_ended(idle)
        assert has_ended(midway)
    listener.close()
    # Another program may listen there by now.
    own = psutil.Process().net_connections("tcp")
    assert place(listener) not in [c.laddr for c in own if c.status == psutil.CONN_LISTEN]
    assert ask(other, "http://tiny.test/").status == 403


def test_a_front_closes_amid_requests_and_leaves_no_thread_and_no_socket():
    # Threads and sockets of earlier tests may end meanwhile.
    files, running = psutil.Process().num_fds(), set(threading.enumerate())
    front = Front()
    session = TinySession()
    listeners = [front.open_listener(session_gate(session, ["tiny.test"])) for _ in range(5)]
    asking = threading.Barrier(6)

    def ask_on(listener):
        with connect(listener) as client:
            client.sendall(GET)
            asking.wait()
            try:
                while client.recv(65_536):
                    client.sendall(GET)
            except ConnectionError:
                return

    threads = [threading.Thread(target=ask_on, args=(listener,)) for listener in listeners]
    for thread in threads:
        thread.start()
    asking.wait()
    front.close()
    for thread in threads:
        thread.join()
    front.close()
    listeners[0].close()
    session.close()
    assert psutil.Process().num_fds() <= files
    assert set(threading.enumerate()) <= running
    with pytest.raises(BadRequest, match="closed"):
        front.open_listener(session_gate(session, []))


def test_many_threads_ask_one_session_at_once(listener):
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    def add(number):
        for _ in range(10):
            ask(listener, "http://tiny.test/cart/add", "POST", f"product=p{number}", form)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ask(listener, "http://tiny.test/cart").body.count(b"<li>") == 80


def test_a_port_that_is_taken_is_told_with_a_way_out(listener):
    host, port = place(listener)
    with pytest.raises(BadRequest, match=f"{host}:{port}.*Take a free port"):
        listen_at(host, port)
