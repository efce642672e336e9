"""The listener to real sites: their addresses and no others, no downloads, no uploads of files."""

from __future__ import annotations

import asyncio
import gzip
import socketserver
import threading
from contextlib import suppress

import pytest
from listener_client import (
    CannedSite,
    ask,
    connect,
    read_exactly,
    rest_of,
    send,
    status_of,
    through,
)

from agentgym_servers.web.front.forward_gate import ForwardGate
from agentgym_servers.web.front.front import Front
from agentgym_servers.web.front.tunnel import Limits
from agentgym_servers.web.sites.site_map import SiteMap
from hosting import nobody
from waiting import until


def canned(body=b"", *headers, status="200 OK"):
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture
def front():
    with Front() as front:
        yield front


@pytest.fixture
def site():
    with CannedSite({"/": canned(b"home", "Content-Type: text/html")}) as site:
        yield site


@pytest.fixture
def open_to(front):
    def open_to(*bases, **limits):
        sites = SiteMap({str(number): base for number, base in enumerate(bases)})
        bounds = Limits(**limits)
        return front.open_listener(ForwardGate(sites, bounds), limits=bounds)

    return open_to


@pytest.fixture
def listener(open_to, site):
    return open_to(site.base)


def test_a_request_goes_on_as_it_is_but_for_what_is_of_one_connection(listener, site):
    site.answers["/p?a=%20b"] = canned(
        b"page",
        "Server: x",
        "Keep-Alive: timeout=5",
        "Set-Cookie: a=1",
        "Set-Cookie: b=2",
        "X-Own: y",
        "Connection: X-Own",
    )
    headers = {
        "Accept": "text/html",
        "Cookie": "a=1; b=2",
        "Connection": "X-Secret, keep-alive",
        "X-Secret": "s",
        "Proxy-Connection": "keep-alive",
        "Proxy-Authorization": "Basic x",
        "Keep-Alive": "5",
        "TE": "trailers",
        "Upgrade": "h2c",
        "Host": site.base[7:],
        "Accept-Encoding": "identity",
    }
    answer = ask(listener, f"{site.base}/p?a=%20b", headers=headers)
    assert (answer.status, answer.body) == (200, b"page")
    assert answer.headers.items() == [
        ("Server", "x"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("Content-Length", "4"),
        ("Connection", "keep-alive"),
    ]
    line, *sent = site.asked[0].decode().removesuffix("\r\n\r\n").split("\r\n")
    assert line == "GET /p?a=%20b HTTP/1.1"
    assert sorted(sent) == [
        "Accept-Encoding: identity",
        "Accept: text/html",
        "Cookie: a=1; b=2",
        f"Host: {site.base[7:]}",
    ]


def test_forms_go_on_with_their_bodies(listener, site):
    site.answers["/"] = canned(b"taken", status="201 Made")
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = ask(
            listener, f"{site.base}/", method, "a=1&b=", {"X-Requested-With": "XMLHttpRequest"}
        )
        assert (answer.status, answer.body) == (201, b"taken")
        assert site.asked[-1].endswith(b"Content-Length: 6\r\n\r\na=1&b=")
    ask(listener, f"{site.base}/", "POST")
    assert b"Content-Length: 0\r\n\r\n" in site.asked[-1]


def test_a_body_in_chunks_goes_on_with_its_length(listener, site):
    head = f"POST {site.base}/ HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    send(listener, head.encode() + b"3\r\na=1\r\n0\r\n\r\n")
    assert site.asked[0].endswith(f"Host: {site.base[7:]}\r\nContent-Length: 3\r\n\r\na=1".encode())


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "http://127.0.0.1/",
        "http://127.0.0.1:1/",
        "http://localhost:{port}/",
        "https://127.0.0.1:{port}/",
        "ftp://127.0.0.1:{port}/",
    ],
)
def test_everything_but_the_sites_is_out_of_bounds(listener, site, url):
    assert ask(listener, url.format(port=site.place[1])).status == 403
    assert site.asked == []


def test_the_host_header_cannot_name_another_site(listener, site):
    assert ask(listener, f"{site.base}/", headers={"Host": "other.test"}).status == 400
    assert ask(listener, f"{site.base}/", headers={"Host": "127.0.0.1"}).status == 400
    assert site.asked == []


@pytest.mark.parametrize("method", ["TRACE", "BREW", "PROPFIND"])
def test_odd_methods_do_not_go_on(listener, site, method):
    assert ask(listener, f"{site.base}/", method).status == 405


def test_a_redirect_goes_to_the_browser_and_is_refused_at_its_next_request(listener, site):
    with CannedSite() as forbidden:
        site.answers["/away"] = canned(b"", f"Location: {forbidden.base}/", status="302 Found")
        answer = ask(listener, f"{site.base}/away")
        assert (answer.status, answer.headers["Location"]) == (302, f"{forbidden.base}/")
        with through(listener) as client:
            last = client.get(f"{site.base}/away")
        assert (last.status_code, last.url) == (403, f"{forbidden.base}/")
        assert forbidden.asked == []


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
            b"2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n",
            b"abc",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200\r\nContent-Length: 2\r\n\r\nab", b"ab"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + canned(b"ab"), b"ab"),
    ],
)
def test_answers_of_any_framing_come_with_their_length(listener, site, raw, body):
    site.answers["/"] = raw
    answer = ask(listener, f"{site.base}/")
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["Content-Length"] == str(len(body))
    assert answer.headers["Transfer-Encoding"] is None


def test_a_compressed_answer_stays_as_it_is(listener, site):
    packed = gzip.compress(b"page" * 100)
    site.answers["/"] = canned(packed, "Content-Encoding: gzip")
    assert ask(listener, f"{site.base}/").body == packed


def test_answers_without_a_body_have_none(listener, site):
    site.answers["/"] = b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n"
    head = ask(listener, f"{site.base}/", "HEAD")
    assert (head.status, head.headers["Content-Length"], head.body) == (200, "12345", b"")
    for status in (204, 304):
        site.answers["/"] = f"HTTP/1.1 {status} x\r\nETag: y\r\n\r\n".encode()
        answer = ask(listener, f"{site.base}/")
        assert (answer.status, answer.headers["ETag"], answer.body) == (status, "y", b"")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 101,
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 40_000 + b"\r\n\r\n",
    ],
)
def test_an_answer_that_cannot_be_passed_on_is_told_so(open_to, site, raw):
    site.answers["/"] = raw
    listener = open_to(site.base, reply_bytes=100)
    assert ask(listener, f"{site.base}/").status == 502


def test_a_site_that_is_not_there_or_too_slow_is_told_so(open_to, site):
    with nobody() as gone:
        assert ask(open_to(f"http://{gone}"), f"http://{gone}/").status == 502
    patience = threading.Event()
    site.answers["/"] = lambda handler: patience.wait(60)
    assert ask(open_to(site.base, forward_s=0.05), f"{site.base}/").status == 504
    patience.set()


def test_a_slow_site_holds_up_nobody(listener, site):
    asked, go_on = threading.Event(), threading.Event()

    def slow(handler):
        asked.set()
        go_on.wait(60)
        handler.wfile.write(canned(b"slow"))

    site.answers["/slow"] = slow
    with connect(listener) as client:
        client.sendall(f"GET {site.base}/slow HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        assert asked.wait(60)
        assert ask(listener, f"{site.base}/").body == b"home"
        go_on.set()
        assert rest_of(client).endswith(b"slow")


def test_a_listener_closes_while_a_site_is_being_asked(open_to, site):
    asked, go_on = threading.Event(), threading.Event()

    def slow(handler):
        asked.set()
        go_on.wait(60)

    site.answers["/"] = slow
    listener = open_to(site.base)
    with connect(listener) as client:
        client.sendall(f"GET {site.base}/ HTTP/1.1\r\n\r\n".encode())
        assert asked.wait(60)
        listener.close()
        assert client.recv(1) == b""
    go_on.set()


@pytest.mark.parametrize(
    ("disposition", "status"),
    [
        ("attachment", 403),
        ("ATTACHMENT ; filename=a.csv", 403),
        ('unknown; filename="a"', 403),
        ("inline", 200),
        ('inline; filename="attachment.png"', 200),
    ],
)
def test_downloads_are_refused(listener, site, disposition, status):
    site.answers["/"] = canned(b"data", f"Content-Disposition: {disposition}")
    assert ask(listener, f"{site.base}/").status == status


def multipart(*heads, mark=b"--b\r\n"):
    parts = [mark + head.encode() + b"\r\n\r\nvalue\r\n" for head in heads]
    return b"".join(parts) + b"--b--\r\n"


FIELD = 'Content-Disposition: form-data; name="a"'


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (multipart(FIELD, FIELD), "multipart/form-data; boundary=b", 200),
        (multipart(FIELD), 'Multipart/Form-Data; charset=x; boundary="b"', 200),
        (
            multipart(FIELD + '; filename=""\r\nContent-Type: x/y'),
            "multipart/form-data; boundary=b",
            200,
        ),
        (
            multipart(FIELD).replace(b"value", b'filename="a"'),
            "multipart/form-data; boundary=b",
            200,
        ),
        (multipart(FIELD, FIELD + '; filename="a.txt"'), "multipart/form-data; boundary=b", 415),
        (multipart(FIELD + "; FileName=a.txt"), "multipart/form-data; boundary=b", 415),
        (multipart(FIELD + ";\r\n filename = a"), "multipart/form-data; boundary=b", 415),
        (multipart(FIELD + "; filename*=UTF-8''a"), "multipart/form-data; boundary=b", 415),
        (multipart(FIELD + '; filename=""; filename="a"'), "multipart/form-data; boundary=b", 415),
        (multipart("X: y\r\n" + FIELD + '; filename="a"'), "multipart/mixed; boundary=b", 415),
        (multipart(FIELD), "multipart/form-data", 415),
        (b"", "multipart/form-data; boundary=b", 200),
    ],
)
def test_forms_in_parts_go_on_unless_they_carry_a_file(listener, site, body, kind, status):
    assert ask(listener, f"{site.base}/", "POST", body, {"Content-Type": kind}).status == status
    assert len(site.asked) == (status == 200)
    if status == 200:
        assert site.asked[0].endswith(body)


def test_a_compressed_form_cannot_be_looked_through(listener, site):
    headers = {"Content-Type": "multipart/form-data; boundary=b", "Content-Encoding": "gzip"}
    body = gzip.compress(multipart(FIELD + '; filename="a"'))
    assert ask(listener, f"{site.base}/", "POST", body, headers).status == 415


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while piece := self.request.recv(1000):
            self.request.sendall(piece.upper())


@pytest.fixture
def echo():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield "{}:{}".format(*server.server_address)
        server.shutdown()
        thread.join()


def test_a_tunnel_leads_to_an_https_site(open_to, echo):
    listener = open_to(f"https://{echo}/path")
    with connect(listener) as client:
        client.sendall(f"CONNECT {echo} HTTP/1.1\r\nHost: {echo}\r\n\r\nearly ".encode())
        told = b"HTTP/1.1 200 Connection established\r\n\r\nEARLY "
        assert read_exactly(client, len(told)) == told
        client.sendall(b"late")
        assert read_exactly(client, 4) == b"LATE"
        client.shutdown(1)
        assert rest_of(client) == b""


def test_tunnels_lead_nowhere_else(open_to, echo, site):
    listener = open_to(f"https://{echo}", site.base)
    port = echo.partition(":")[2]
    for target in (site.base[7:], "example.com:443", f"localhost:{port}", "127.0.0.1:443"):
        assert ask(listener, target, "CONNECT").status == 403
    assert ask(listener, "127.0.0.1", "CONNECT").status == 400
    assert ask(listener, f"http://{echo}/").status == 403
    assert ask(listener, f"https://{echo}/").status == 403


def test_a_default_port_need_not_be_told(open_to, monkeypatch):
    asked = []

    async def refuse(host, port, **_):
        asked.append((host, port))
        raise ConnectionRefusedError

    # Another program of this machine may listen at these ports.
    monkeypatch.setattr(asyncio, "open_connection", refuse)
    listener = open_to("https://127.0.0.77", "http://127.0.0.77/admin")
    for url in ("http://127.0.0.77/", "http://127.0.0.77:80/"):
        assert ask(listener, url).status == 502
    assert ask(listener, "http://127.0.0.77:443/").status == 403
    assert ask(listener, "127.0.0.77:443", "CONNECT").status == 502
    assert ask(listener, "127.0.0.77:80", "CONNECT").status == 403
    assert asked == [("127.0.0.77", 80), ("127.0.0.77", 80), ("127.0.0.77", 443)]


def test_a_sites_name_is_compared_without_its_case():
    gate = ForwardGate(SiteMap({"gitlab": "https://Code.Example"}))
    assert gate.tunnel_to("CODE.example:443") == ("code.example", 443)


def test_a_tunnel_to_nobody_is_told_so(open_to):
    with nobody() as gone:
        assert ask(open_to(f"https://{gone}"), gone, "CONNECT").status == 502


def test_a_tunnel_ends_when_it_is_idle_and_when_the_listener_is_closed(open_to, echo):
    asked = f"CONNECT {echo} HTTP/1.1\r\n\r\n".encode()
    impatient = open_to(f"https://{echo}", idle_s=0.05)

    def answer():
        with suppress(ConnectionError):  # or nothing: it heard nothing in that time
            return send(impatient, asked)

    assert status_of(until(answer)) == 200
    listener = open_to(f"https://{echo}")
    with connect(listener) as client:
        client.sendall(asked + b"a")
        told = b"HTTP/1.1 200 Connection established\r\n\r\nA"
        assert read_exactly(client, len(told)) == told
        listener.close()
        assert client.recv(1) == b""
