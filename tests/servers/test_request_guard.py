"""No web page can use a server, whatever protocol it speaks; and no call is without bound."""

from __future__ import annotations

import json
import re
import socket
import threading
import tracemalloc
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import cdp
from agentgym_env import EnvClient
from agentgym_env.errors import BadRequest
from agentgym_env.wire import MSGPACK
from agentgym_servers.host.request_guard import RequestGuard, check_content_type, checked_host
from agentgym_servers.worlds.search.retrieval.search_app import make_search_app
from cdp import needs_chromium
from hosting import HttpServer
from retrieving import FACTS
from worlds import Guess

PROTOCOLS = ("agentgym-sdk", "agentgym", "openenv", "nemo-gym", "mcp")
PARAMS = {"responses_create_params": {"input": [{"role": "user", "content": "Play."}]}}
CREATE = {
    "agentgym-sdk": ("/v1/sessions", [{}]),
    "agentgym": ("/create", {}),
    "openenv": ("/reset", {}),
    "nemo-gym": ("/reset", PARAMS),
    "mcp": (
        "/mcp",
        {
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        },
    ),
    "retriever": ("/retrieve", {"queries": ["python"]}),
}  # fmt: skip


class Facts:
    """A retriever of one passage."""

    def search(self, queries, k):
        from agentgym_servers.worlds.search.retrieval.passages import Hit

        return [[Hit(FACTS[0], 1.0)] for _ in queries]


@pytest.fixture
def start(speak, make_host):
    """Serves a protocol, or the retriever; its address."""
    servers = []

    def start(protocol: str) -> str:
        if protocol == "retriever":
            servers.append(HttpServer(None, make_search_app(Facts(), {"status": "ok"})))
            return servers[-1].address
        if protocol == "agentgym":
            from agentgym_servers.worlds.textcraft.env import TextCraft

            return speak(protocol, TextCraft, env_id="agentgym/TextCraft-v0")
        return speak(protocol, Guess)

    yield start
    for server in servers:
        server.stop()


def send(address: str, path: str, body: object, **headers: str | None) -> requests.Response:
    """POST a body with these headers, `Content_Type=None` for none; JSON unless given."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    } | named
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(address + path, data=data, headers=named, timeout=60)


def opened(address: str) -> float:
    """How many sessions the server holds; 0 for a retriever, which has no metrics."""
    text = requests.get(address + "/metrics", timeout=60).text
    found = re.search(r"^agentgym_sessions (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "retriever"])
def test_every_protocol_rejects_what_a_web_page_can_send(start, protocol):
    address = start(protocol)
    path, body = CREATE[protocol]
    port = address.rpartition(":")[2]
    cases = [
        ({"Content_Type": None}, 415, "unsupported_media_type"),
        ({"Content_Type": "text/plain;charset=UTF-8"}, 415, "unsupported_media_type"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415, "unsupported_media_type"),
        ({"Content_Type": "application/x-msgpack"}, 415, "unsupported_media_type"),
        ({"Origin": "https://example.org"}, 403, "foreign_origin"),
        ({"Origin": "null"}, 403, "foreign_origin"),
        ({"Origin": f"http://localhost:{int(port) + 1}"}, 403, "foreign_origin"),
        ({"Host": "example.org"}, 421, "unknown_host"),
        ({"Host": f"example.org:{port}", "Origin": f"http://example.org:{port}"}, 421,
         "unknown_host"),
    ]  # fmt: skip
    for headers, status, code in cases:
        response = send(address, path, body, **headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code), headers
    if protocol != "agentgym-sdk":
        packed = send(address, path, msgspec.msgpack.encode(body), Content_Type=MSGPACK)
        assert packed.status_code == 415 and "send Content-Type: application/json" in packed.text
    # With a body or without one: a page's Origin is always there.
    assert send(address, path, b"", Content_Type=None, Origin="null").status_code == 403
    assert opened(address) == 0
    for headers in ({}, {"Origin": address}, {"Host": f"localhost:{port}"}, {"Host": "[::1]"}):
        assert send(address, path, body, **headers).ok, headers


def test_a_form_of_no_content_opens_an_original_episode_for_a_program(start):
    # AgentGym's own clients create an episode by a POST without a body.
    address = start("agentgym")
    created = requests.post(address + "/create", json={}, timeout=60)
    assert created.ok and opened(address) == 1


def test_a_foreign_page_opens_no_socket(start):
    address = start("openenv").replace("http://", "ws://") + "/ws"
    for headers in ({"Origin": "https://example.org"}, {"Host": "example.org"}):
        with pytest.raises(InvalidStatus) as refused, connect(address, additional_headers=headers):
            pass
        assert refused.value.response.status_code == 403
    with connect(address, origin=address.replace("ws://", "http://").removesuffix("/ws")) as socket:
        socket.send(json.dumps({"type": "reset", "data": {}}))
        assert json.loads(socket.recv())["type"] == "observation"


@pytest.fixture
def foreign_page():
    """The address of an empty page of another origin."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>a page</title>")

        def log_message(self, *_):
            """Nothing is written to the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.vital
@needs_chromium
async def test_a_page_in_a_browser_opens_no_session(start, foreign_page):
    targets = []
    for protocol in PROTOCOLS:
        path, body = CREATE[protocol]
        targets.append((start(protocol), path, json.dumps(body)))
    async with cdp.chromium() as browser:
        page = await browser.page()
        await page.goto(foreign_page)
        for address, path, body in targets:
            tried = await page.js(
                f"""(async () => {{
                    const url = {json.dumps(address + path)}, body = {json.dumps(body)};
                    const types = ['text/plain', 'application/x-www-form-urlencoded', ''];
                    let sent = 0;
                    for (let i = 0; i < 20; i++) {{
                        sent += navigator.sendBeacon(url, body);
                        sent += navigator.sendBeacon(url);
                        for (const type of types) {{
                            const blob = new Blob([body], {{type}});
                            await fetch(url, {{method: 'POST', mode: 'no-cors', body: blob}});
                            sent++;
                        }}
                        await fetch(url, {{method: 'POST', mode: 'no-cors'}});
                    }}
                    await fetch(url, {{method: 'POST', body,
                        headers: {{'Content-Type': 'application/json'}}}}).catch(() => sent++);
                    await new Promise((done) => {{
                        const path = url.replace('http', 'ws').replace(/[^/]*$/, 'ws');
                        const socket = new WebSocket(path);
                        socket.onopen = () => done(sent = -1);
                        socket.onerror = () => done(sent++);
                    }});
                    return sent;
                }})()"""
            )
            assert tried == 102, address
    for address, path, body in targets:
        assert opened(address) == 0, address
        assert send(address, path, body.encode()).ok


@pytest.mark.parametrize(
    ("listens_on", "allowed", "host", "accepted"),
    [
        ("127.0.0.1", (), "127.0.0.1:8000", True),
        ("127.0.0.1", (), "127.9.9.9", True),
        ("127.0.0.1", (), "LOCALHOST:1", True),
        ("127.0.0.1", (), "[::1]:8000", True),
        ("127.0.0.1", (), "127.0.0.1.example.org", False),
        ("127.0.0.1", (), "10.0.0.7", False),
        ("127.0.0.1", (), "user@localhost", False),
        ("127.0.0.1", (), "localhost/x", False),
        ("127.0.0.1", (), "localhost:x", False),
        ("127.0.0.1", (), "[::1]example.org", False),
        ("127.0.0.1", (), "localhost, example.org", False),
        ("127.0.0.1", (), "", False),
        ("127.0.0.1", ("Gym.Internal",), "gym.internal:80", True),
        ("127.0.0.1", ("*",), "anything.example", True),
        ("10.0.0.7", (), "10.0.0.7:8000", True),
        ("10.0.0.7", (), "localhost", True),
        ("10.0.0.7", (), "10.0.0.8", False),
        ("0.0.0.0", (), "10.0.0.8:80", True),
        ("::", (), "[fd00::8]:80", True),
        ("0.0.0.0", (), "example.org", False),
    ],
)
def test_which_hosts_are_accepted(listens_on, allowed, host, accepted):
    guard = RequestGuard(listens_on, allowed)
    for _ in range(2):  # the second time from what it remembers
        error = guard.check_headers({b"host": host})
        assert (error is None) is accepted
        assert error is None or error.code == "unknown_host"


@pytest.mark.parametrize(
    ("listens_on", "allowed", "origin", "accepted"),
    [
        ("127.0.0.1", (), "http://localhost:8000", True),
        ("127.0.0.1", (), "http://localhost:3000", False),
        ("127.0.0.1", ("localhost",), "http://localhost:3000", True),
        ("127.0.0.1", ("*",), "http://localhost:3000", False),
        ("0.0.0.0", ("ui.example",), "https://ui.example", True),
        ("0.0.0.0", ("ui.example",), "https://ui.example.org", False),
        ("0.0.0.0", (), "http://[", False),
        ("0.0.0.0", (), "", False),
        ("127.0.0.1", (), "chrome-extension://localhost:8000", False),
    ],
)
def test_which_origins_are_accepted(listens_on, allowed, origin, accepted):
    headers = {b"host": "localhost:8000", b"origin": origin}
    assert (RequestGuard(listens_on, allowed).check_headers(headers) is None) is accepted


def test_a_request_without_a_host_is_from_no_browser():
    assert RequestGuard().check_headers({}) is None


def test_what_is_remembered_of_hosts_is_bounded():
    guard = RequestGuard("127.0.0.1", ("*",))
    for number in range(1000):
        assert guard.check_headers({b"host": f"name-{number}"}) is None
    assert len(guard._accepted) <= 64


@pytest.mark.parametrize("name", ["", "http://x", "x:80", "a b", "[::1]", "ü.example"])
def test_an_allowed_host_is_a_plain_name(name):
    with pytest.raises(BadRequest, match="--allowed-host is a host name"):
        checked_host(name)


def test_a_content_type_is_read_without_its_parameters_and_case():
    for fine in ("application/json", "Application/JSON ; charset=utf-8", "application/msgpack"):
        assert check_content_type("POST", b"{}", fine) is None
    for wrong in ("", "text/json", "application/jsonp", "text/plain; application/json"):
        assert check_content_type("POST", b"{}", wrong).code == "unsupported_media_type"
        assert check_content_type("GET", b"", wrong) is None
    assert check_content_type("POST", b"", "") is None
    # aiohttp, urllib, curl and wget give an empty body a type of their own.
    for empty in ("application/octet-stream", "application/x-www-form-urlencoded", "text/plain"):
        assert check_content_type("POST", b"", empty) is None


def encodings(items: list[object]) -> list[tuple[str, bytes]]:
    return [
        ("application/json", json.dumps(items).encode()),
        ("application/json", json.dumps(items, indent=1).encode()),
        ("application/msgpack", msgspec.msgpack.encode(items)),
    ]


def test_a_call_of_too_many_items_is_rejected_whole(serve):
    server = serve(max_items=20)
    assert requests.get(server.address + "/v1/env", timeout=60).json()["max_items"] == 20
    for content_type, body in encodings([{}] * 21):
        response = send(server.address, "/v1/sessions", body, Content_Type=content_type)
        assert response.status_code == 413
        error = msgspec.json.decode(response.content)["error"]
        assert error["code"] == "too_many_items" and "more than 20 items" in error["message"]
    assert opened(server.address) == 0
    for content_type, body in encodings([{}] * 20):
        assert send(server.address, "/v1/sessions", body, Content_Type=content_type).ok
    assert opened(server.address) == 60


def test_braces_and_quotes_in_actions_are_no_items(serve):
    server = serve(max_items=2)
    names = [reply["session"] for reply in send(server.address, "/v1/sessions", [{}] * 2).json()]
    assert send(server.address, "/v1/reset", [{"session": n, "seed": 0} for n in names]).ok
    action = '{{{"[\\{' * 50
    items = [{"session": n, "turn": 1, "action": action} for n in names]
    assert [r["turn"] for r in send(server.address, "/v1/step", items).json()] == [1, 1]
    assert send(server.address, "/v1/step", [*items, items[0]]).status_code == 413


def test_the_default_limit_is_checked_before_any_work(serve):
    server = serve()
    assert requests.get(server.address + "/v1/env", timeout=60).json()["max_items"] == 4096
    body = b"[" + b"{}," * 5_300_000 + b"{}]"
    with allocates_at_most(200):  # the client's copies included
        response = send(server.address, "/v1/sessions", body)
    assert response.json()["error"]["code"] == "too_many_items"
    assert opened(server.address) == 0


@contextmanager
def allocates_at_most(mebibytes):
    """For a body of 16 MiB, which took 2,500 when it was decoded."""
    tracemalloc.start()
    try:
        yield
        most = tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()
    assert most < mebibytes, f"{most:.0f} MiB"


PIECES = 8 * 2**20 - 8192
"""Of two bytes each: the body is as long as a server takes one. Read once it takes a second; eight
million searches to its end take half an hour at least, and as many scans byte by byte days."""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" + b"{" * 4096 + b'"' + b'\\"' * PIECES, 400),
        (b"[" + b"{" * 4096 + b'"{' + b'\\"' * PIECES + b"\\", 400),
        (b"[" + b"{" * 4096 + b'"{",' * (PIECES // 2), 400),
        (b"[" + b"{" * 4097 + b'"",' * (PIECES // 2), 413),
    ],
    ids=["no end", "half an escape", "many strings", "too many"],
)
def test_strings_that_do_not_end_are_scanned_once(make_host, body, status):
    """Time and memory are in proportion to the body, whatever is in it."""
    host = make_host()
    with allocates_at_most(100):
        found, _, _ = host.handle("POST", "/v1/sessions", "", body, "application/json")
    assert found == status


def test_repeated_headers_are_not_the_last_one_alone(start):
    address = start("agentgym-sdk")
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(
            b"GET /v1/env HTTP/1.1\r\nHost: example.org\r\nHost: localhost\r\n"
            b"Connection: close\r\n\r\n"
        )
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b" 4" in answer.split(b"\r\n")[0]


def test_a_client_keeps_to_the_limit_that_the_card_states(serve):
    server = serve(max_items=20)
    with EnvClient(server.address) as client:
        assert client.card().max_items == 20
        sessions = client.open_many(50)
        replies = client.reset_many([(session, 0, "5", None) for session in sessions])
        assert [reply.turn for reply in replies] == [0] * 50
        assert server.host.codec.figures.requests["/v1/reset"] == 3
        client.close_many(sessions)
    assert opened(server.address) == 0
