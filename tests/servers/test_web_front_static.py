"""A folder of files as a site: what is in it, and nothing else."""

from __future__ import annotations

import pytest
from listener_client import ask
from web_shop import TinySession

from agentgym_servers.web.front import session_site
from agentgym_servers.web.front.forward_gate import session_gate
from agentgym_servers.web.front.front import Front
from agentgym_servers.web.front.session_site import StaticSite
from agentgym_servers.web.sites.site import SiteSession

FILES = "http://files.test"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "html"
    (folder / "core").mkdir(parents=True)
    (folder / "index.html").write_text("<p>Home</p>")
    (folder / "click me.html").write_text("<p>Ünï</p>", encoding="utf-8")
    (folder / "core" / "core.js").write_text("var x = 1;")
    (folder / "core" / "core.CSS").write_text("p {}")
    (folder / "core" / "dot.png").write_bytes(b"\x89PNG")
    (folder / "core" / "odd.thing").write_bytes(b"\0\1")
    (folder / "core" / "inside.html").symlink_to(folder / "index.html")
    (tmp_path / "secret.html").write_text("secret")
    (folder / "core" / "outside.html").symlink_to(tmp_path / "secret.html")
    (folder / "up").symlink_to(tmp_path)
    (tmp_path / "html-too").mkdir()
    (tmp_path / "html-too" / "a.html").write_text("secret")
    return folder


@pytest.fixture
def listener(folder):
    with Front() as front:
        beside = {"files.test": StaticSite(folder)}
        yield front.open_listener(session_gate(TinySession(), ["tiny.test"], beside=beside))


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/", "text/html; charset=utf-8", "<p>Home</p>"),
        ("", "text/html; charset=utf-8", "<p>Home</p>"),
        ("/index.html?seed=1", "text/html; charset=utf-8", "<p>Home</p>"),
        ("/click%20me.html", "text/html; charset=utf-8", "<p>Ünï</p>"),
        ("/core/core.js", "text/javascript; charset=utf-8", "var x = 1;"),
        ("/core/core.CSS", "text/css; charset=utf-8", "p {}"),
        ("/core/odd.thing", "application/octet-stream", "\0\1"),
        ("/core/inside.html", "text/html; charset=utf-8", "<p>Home</p>"),
    ],
)
def test_files_come_with_their_types(listener, path, kind, body):
    for _ in range(2):
        answer = ask(listener, FILES + path)
        assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
        assert answer.body == body.encode()
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/missing.html",
        "/core",
        "/core/",
        "/index.html/",
        "/index.html/x",
        "//index.html",
        "/./index.html",
        "/core//core.js",
        "/../secret.html",
        "/%2e%2e/secret.html",
        "/..%2fsecret.html",
        "/core/%2E%2E/%2E%2E/secret.html",
        "/core/../index.html",
        "/..%5csecret.html",
        "/../html-too/a.html",
        "/core/outside.html",
        "/up/secret.html",
        "/%2fetc/passwd",
        "//etc/passwd",
        "/index.html%00",
        "/%00",
        "/" + "a" * 300,
        "/" + "a/" * 3000,
    ],
)
def test_nothing_else_is_there(listener, path):
    assert ask(listener, FILES + path).status == 404


def test_files_are_only_read(listener):
    assert ask(listener, f"{FILES}/index.html", "POST", "a=1").status == 405
    head = ask(listener, f"{FILES}/index.html", "HEAD")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", "11")


def test_files_are_kept_in_memory(listener, folder):
    ask(listener, f"{FILES}/index.html")
    (folder / "index.html").unlink()
    assert ask(listener, f"{FILES}/index.html").body == b"<p>Home</p>"
    assert ask(listener, f"{FILES}/").status == 404


def test_memory_is_bounded_and_so_is_a_file(listener, folder, monkeypatch):
    monkeypatch.setattr(session_site, "MAX_KEPT_BYTES", 8)
    monkeypatch.setattr(session_site, "MAX_FILE_BYTES", 15)
    (folder / "long.txt").write_text("a" * 16)
    assert ask(listener, f"{FILES}/long.txt").status == 404
    assert ask(listener, f"{FILES}/index.html").status == 200
    (folder / "index.html").unlink()
    assert ask(listener, f"{FILES}/index.html").status == 404


def test_the_sites_of_the_session_stand_beside(listener):
    assert b"<title>cart</title>" in ask(listener, "http://tiny.test/cart").body
    assert ask(listener, "http://other.test/index.html").status == 403


def test_one_folder_stands_behind_many_listeners(folder):
    site = StaticSite(folder)
    with Front() as front:
        gates = [session_gate(SiteSession({}, {}), [], beside={"files.test": site}) for _ in "abc"]
        assert {ask(front.open_listener(gate), FILES).status for gate in gates} == {200}
