"""A browser reaches the sites of its episode, and nothing else: each way out is tried."""

from __future__ import annotations

import http.server
import os
import threading
from pathlib import Path

import pytest

from agentgym_servers.web.actions.calls import WIDGETS, Action, ActionProblem
from agentgym_servers.web.actions.parse import parse_action
from agentgym_servers.web.chromium.browser import ChromiumBrowser
from agentgym_servers.web.chromium.messages import ActRequest, Evaluate, StartSites, Value
from agentgym_servers.web.front.forward_gate import ProxyGate, _front
from agentgym_servers.web.front.session_site import StaticSite
from browsing import needs_chromium

pytestmark = [needs_chromium, pytest.mark.slow]


class Outside:
    """A server on this machine that no page may reach; it remembers who did."""

    def __init__(self):
        self.asked = asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"outside")

            do_POST = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self):
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture(scope="module")
def outside():
    server = Outside()
    yield server
    server.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory, outside):
    """A browser on a page of an allowed host that may hold anything."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text("<title>in</title><p>inside</p>")
    (folder / "jump.html").write_text(
        f'<meta http-equiv="refresh" content="0; url=http://127.0.0.1:{outside.port}/jumped">'
    )
    (folder / "frame.html").write_text(
        f'<title>framed</title><iframe src="http://127.0.0.1:{outside.port}/framed"></iframe>'
        '<iframe src="file:///etc/passwd"></iframe>'
    )
    (folder / "up.html").write_text(
        '<title>up</title><form method="post" enctype="multipart/form-data" action="/up">'
        '<label for="f">File</label><input id="f" type="file" name="f"><button>Send</button></form>'
        '<a href="/index.html" download>Save</a><a href="file:///etc/passwd">Read</a>'
        '<a href="/index.html" target="_blank">Open</a>'
    )
    (folder / "worker.js").write_text("self.addEventListener('fetch', () => {});")
    listener = _front_listener(folder)
    start = StartSites(f"confined-{id(folder)}", listener.address, ["http://in.test/index.html"])
    # The check of addresses is left open: what holds here is the browser and its listener.
    browser = ChromiumBrowser(start, lambda origin: True)
    yield browser
    browser.close()
    listener.close()


def _front_listener(folder: Path):
    return _front(os.getpid()).open_listener(ProxyGate({"in.test": StaticSite(folder)}))


def goto(page, url):
    page.seen = page.ask(ActRequest(page.name, f"goto({url!r})"))
    return page


def run(page, script):
    """What a script on the page says."""
    answer = page.ask(Evaluate(page.name, 0, script))
    return answer.value if isinstance(answer, Value) else answer.message


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://example.com/",
        "https://in.test/",
        "http://127.0.0.1:{port}/direct",
        "http://localhost:{port}/direct",
        "http://[::1]:{port}/direct",
        "http://0.0.0.0:{port}/direct",
        "http://in.test:{port}/direct",
        "http://in.test@127.0.0.1:{port}/direct",
        "ftp://127.0.0.1:{port}/direct",
        "ws://127.0.0.1:{port}/direct",
        "file:///etc/passwd",
        "file:///",
        "view-source:file:///etc/passwd",
        "chrome://version/",
        "devtools://devtools/bundled/inspector.html",
        "data:text/html,<p>made up</p>",
        "blob:http://in.test/1",
        "filesystem:http://in.test/temporary/a",
    ],
)
def test_no_address_leads_out(page, outside, url):
    goto(page, "http://in.test/index.html")
    goto(page, url.format(port=outside.port))
    assert outside.asked == []
    for word in ("root:", "outside", "Chromium", "made up", "daemon"):
        assert word not in page.tree()
    goto(page, "http://in.test/index.html")
    assert "inside" in page.tree()


def test_a_page_that_jumps_out_does_not_arrive(page, outside):
    goto(page, "http://in.test/jump.html")
    page.act(Action("noop", (500.0,)))
    assert outside.asked == [] and "outside" not in page.tree()
    assert "out of bounds" in page.tree() or "jump" in page.tabs[0][0]


def test_frames_hold_nothing_from_outside(page, outside):
    goto(page, "http://in.test/frame.html")
    assert outside.asked == []
    assert "outside" not in page.tree() and "root:" not in page.tree()


@pytest.mark.parametrize(
    "script",
    [
        "fetch('http://127.0.0.1:{port}/fetched', {{mode: 'no-cors'}}).then(r => r.status, String)",
        "fetch('file:///etc/passwd').then(r => r.text(), String)",
        "new Promise(done => {{ const i = new Image(); i.onload = () => done('loaded');"
        " i.onerror = () => done('no'); i.src = 'http://127.0.0.1:{port}/drawn'; }})",
        "new Promise(done => {{ const s = new WebSocket('ws://127.0.0.1:{port}/talked');"
        " s.onopen = () => done('opened'); s.onerror = () => done('no'); }})",
        "navigator.sendBeacon('http://127.0.0.1:{port}/beaconed')",
        "new Promise(done => {{ const f = document.createElement('form'); f.method = 'post';"
        " f.action = 'http://127.0.0.1:{port}/posted'; f.target = '_blank';"
        " document.body.append(f); f.submit(); setTimeout(() => done('sent'), 300); }})",
    ],
)  # fmt: skip
def test_scripts_reach_nothing_outside(page, outside, script):
    goto(page, "http://in.test/index.html")
    told = run(page, script.format(port=outside.port))
    page.act(Action("noop", (200.0,)))
    assert outside.asked == []
    assert told not in ("loaded", "opened") and "root:" not in str(told)
    while len(page.tabs) > 1:
        page.act(Action("tab_close"))


def test_webrtc_offers_no_way_around_the_proxy(page):
    goto(page, "http://in.test/index.html")
    candidates = run(
        page,
        "new Promise(done => { const found = []; const c = new RTCPeerConnection("
        "{iceServers: [{urls: 'stun:127.0.0.1:3478'}]}); c.createDataChannel('x');"
        " c.onicecandidate = e => e.candidate ? found.push(e.candidate.candidate) : done(found);"
        " c.createOffer().then(o => c.setLocalDescription(o)); setTimeout(() => done(found), 2000);"
        " })",
    )
    assert [one for one in candidates if " udp " in one.lower()] == []


def test_names_are_not_looked_up(page):
    goto(page, "http://in.test/index.html")
    assert "ERR_" in str(goto(page, "https://a-name-to-look-up.example/").seen.error)


def test_service_workers_are_blocked(page):
    goto(page, "http://in.test/index.html")
    told = run(
        page,
        "Promise.race([navigator.serviceWorker.register('/worker.js').then(() => 'registered',"
        " String), new Promise(done => setTimeout(done, 1000, 'blocked'))])",
    )
    assert told != "registered"


def test_nothing_is_saved_or_sent_from_the_disk(page, tmp_path):
    goto(page, "http://in.test/up.html")
    tree = page.tree()
    bid = {name: line.split("[")[1].split("]")[0] for line in tree.splitlines()
           for name in ("Save", "Read", "Open") if f"link '{name}'" in line}  # fmt: skip
    page.act(Action("click", (bid["Save"], "left", ())))
    page.act(Action("click", (bid["Read"], "left", ())))
    assert "root:" not in page.tree()
    goto(page, "http://in.test/up.html")
    page.act(Action("click", (bid["Open"], "left", ())))
    assert len(page.tabs) == 2 and "inside" in page.tree()
    page.act(Action("tab_close"))
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    answer = page.ask(ActRequest(page.name, f"upload_file('9', {str(secret)!r})"))
    assert "upload_file" in answer.error
    assert run(page, "document.querySelector('#f').files.length") == 0


@pytest.mark.parametrize("grammar", [None, WIDGETS])
@pytest.mark.parametrize(
    "text",
    [
        "upload_file('9', '/etc/hostname')",
        "mouse_upload_file(1, 2, '/etc/hostname')",
        "__import__('os').system('true')",
        "open('/etc/passwd')",
        "page.goto('file:///etc/passwd')",
        "exec('1')",
    ],
)
def test_no_action_is_a_program_or_an_upload(text, grammar):
    found = parse_action(text) if grammar is None else parse_action(text, grammar)
    assert isinstance(found, ActionProblem) or found.kind == "goto"  # which is checked apart
