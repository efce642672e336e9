"""`agentgym sites` over HTTP: logged in without cookies, judged by the tasks' evaluators."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import requests

from agentgym_env.errors import BadRequest
from agentgym_env.text_env import UnknownTask
from agentgym_servers.web.actions.calls import ENDINGS
from agentgym_servers.web.evaluation.page_views import CONTROLS
from agentgym_servers.web.explore.panel import open_panel
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.web.sites.site import ACCOUNTS, HOSTS, Response, host_of
from agentgym_servers.web.sites.site_map import embedded_sites
from agentgym_servers.web.tasks.scripts import Goto, action_of
from agentgym_servers.web.text_browser.browser import TextBrowser

WORLD = embedded(0)
SAMPLED = list(WORLD.tasks)[::101]
COMMAND = "import typer; from agentgym_servers.web.explore.command import sites as s; typer.run(s)"


class Client:
    """A client without cookies, which knows the sites by their own addresses as well."""

    def __init__(self, explorer, panel):
        self.panel = panel
        self.explorer = explorer
        self.http = requests.Session()
        self.http.trust_env = False
        self.http.cookies.set_policy(_NoCookies())

    def post(self, path, value, **headers):
        return self.http.post(f"{self.panel}{path}", json=value, headers=headers, timeout=60)

    def get(self, url, **headers):
        return self.http.get(self.explorer.links.shown(url), headers=headers, timeout=60)

    def check(self, browser, answer=""):
        """The verdict on a browser's page, sent as the panel's script sends it."""
        page = browser.document()
        controls = [e for e in page.document.root.elements() if e.tag in CONTROLS]
        shown = {
            "url": self.explorer.links.shown(page.url),
            "html": self.explorer.links.shown(page.html),
            "written": [[one.value, one.checked] for one in controls],
        }
        reply = self.post("/check", {"page": shown, "answer": answer})
        assert reply.status_code == 200, reply.text
        return reply.json()

    # What a `TextBrowser` asks of a session.
    def knows(self, host):
        return host in WORLD.sites

    def answer(self, request):
        url = self.explorer.links.shown(f"http://{request.host}{request.path}")
        if request.method == "POST":
            reply = self.http.post(url, self.shown(request.form), allow_redirects=False, timeout=60)
        else:
            reply = self.http.get(
                url, params=self.shown(request.query), allow_redirects=False, timeout=60
            )
        assert "Set-Cookie" not in reply.headers
        location = reply.headers.get("Location")
        return Response(
            re.sub(r"<script>.*?</script>\n?", "", self.own(reply.text), count=1, flags=re.DOTALL),
            reply.status_code,
            reply.headers["Content-Type"],
            None if location is None else self.own(location),
        )

    def shown(self, fields):
        return {
            name: [self.explorer.links.shown(one) for one in values]
            for name, values in fields.items()
        }

    def own(self, text):
        for host in map(host_of, HOSTS):
            text = text.replace(self.explorer.links.shown(f"http://{host}"), f"http://{host}")
        return text


class _NoCookies(requests.cookies.cookielib.DefaultCookiePolicy):
    def set_ok(self, cookie, request):
        return False


@pytest.fixture(scope="module")
def client():
    with open_panel() as opened:
        yield Client(*opened)


def play(client, task):
    """Follow a task's expert to its end; the browser, and the answer that the expert gives."""
    browser = TextBrowser(client)
    started = client.post("/start", {"task": task})
    assert started.json()["goal"] == WORLD.tasks[task].intent
    for url in WORLD.tasks[task].start_urls:
        browser.act(goto(url))
    before = client.check(browser)
    for step in WORLD.experts[task]:
        action = action_of(
            Goto(embedded_sites().resolve(step.url)) if isinstance(step, Goto) else step,
            browser.tree(),
        )
        assert action is not None, f"{step} names nothing in {task}"
        if action.kind in ENDINGS:
            return before, browser, action.text(0)
        assert browser.act(action) == "", task
    raise AssertionError(f"the expert of {task} does not end")


def goto(url):
    action = action_of(Goto(embedded_sites().resolve(url)), "")
    assert action is not None
    return action


def test_a_person_who_does_the_task_is_told_so_and_not_before(client):
    for task in SAMPLED:
        before, browser, answer = play(client, task)
        assert before["reached"] is False, task
        after = client.check(browser, answer)
        assert after["reached"] is True, (task, after)
        assert all(one["passed"] for one in after["verdicts"])


def test_the_sampled_tasks_have_every_kind_of_evaluation():
    kinds = {kind for task in SAMPLED for kind in WORLD.tasks[task].eval.eval_types}
    assert kinds == {"string_match", "url_match", "program_html"}


def test_a_wrong_answer_is_not_the_goal_and_the_reasons_are_given(client):
    _, browser, _ = play(client, "shopping/7101/0")
    found = client.check(browser, "nothing")
    assert found["reached"] is False
    (one,) = found["verdicts"]
    assert (one["where"], one["found"], one["passed"]) == ("the answer", "nothing", False)


@pytest.mark.parametrize(
    ("site", "path", "inside"),
    [
        ("shopping", "/customer/account/", "Emma Lopez"),
        ("shopping_admin", "", "Dashboard"),
        ("reddit", "/", ACCOUNTS["reddit"].username),
        ("gitlab", "/", "byteblaze"),
        ("wikipedia", "/", "Encyclopedia"),
        ("map", "/", "Map"),
        ("homepage", "/password.html", ACCOUNTS["gitlab"].password),
    ],
)
def test_every_site_is_open_and_logged_in_for_a_client_without_cookies(client, site, path, inside):
    page = client.get(HOSTS[site] + path)
    assert page.status_code == 200 and inside in page.text
    assert "sign_in" not in page.url and "login" not in page.url
    assert not re.search(r"http://\w+\.test", page.text)
    assert page.headers["Content-Security-Policy"] == f"frame-ancestors {client.panel}"


def test_starting_a_task_resets_the_sites(client):
    _, browser, _ = play(client, "gitlab/1151/15")
    issue = browser.url
    assert "The start page needs an owner" in client.get(issue).text
    client.post("/start", {"task": "gitlab/1151/15"})
    assert client.get(issue).status_code == 404


def test_starting_again_logs_in_who_has_logged_out(client):
    client.post("/start", {"task": "reddit/1014/9"})
    forum = client.explorer.links.shown(HOSTS["reddit"])
    assert client.http.post(f"{forum}/logout", timeout=60).status_code == 200
    assert ACCOUNTS["reddit"].username not in client.get(forum).text
    client.post("/start", {"task": "reddit/1014/9"})
    assert ACCOUNTS["reddit"].username in client.get(forum).text


def test_the_panel_shows_the_goal_and_links_to_the_seven_sites(client):
    client.post("/start", {"task": "map/1202/11"})
    page = client.get(client.panel).text
    assert "What is the phone number of Kestermere General Hospital?" in page
    links = re.findall(r'data-url="([^"]+)"', page)
    assert len(set(links)) == 7
    assert {client.get(link).status_code for link in links} == {200}


def test_pages_of_other_sites_can_neither_read_nor_send(client):
    shop = client.explorer.links.shown(HOSTS["shopping"])
    for address in (client.panel, shop):
        assert client.get(address, Host="evil.example:80").status_code == 403
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for origin in ("http://evil.example", "null", client.panel):
        answer = client.http.post(f"{shop}/customer/account/", headers={"Origin": origin, **form})
        assert answer.status_code == 403, origin
    task = {"task": "map/1202/11"}
    assert client.post("/start", task, Origin=shop).status_code == 403
    assert client.post("/start", task, Origin=client.panel).status_code == 200
    plain = client.http.post(f"{client.panel}/start", '{"task": "map/1202/11"}', timeout=60)
    assert plain.status_code == 415


@pytest.mark.parametrize(
    ("path", "value", "status", "words"),
    [
        ("/start", {"task": "shopping/7101/x"}, 400, "did you mean"),
        ("/start", {"task": 3}, 400, "Expected `str`"),
        ("/check", {"page": {}, "answer": ""}, 400, "missing required field"),
        ("/other", {}, 404, "/other"),
    ],
)
def test_bad_requests_are_answered_with_a_reason(client, path, value, status, words):
    answer = client.post(path, value)
    assert answer.status_code == status
    assert words in answer.text


def test_an_unknown_task_and_a_used_port_are_errors():
    with pytest.raises(UnknownTask, match="shopping/7101/0"), open_panel("shopping/7101/00"):
        raise AssertionError("it opened")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = f"ports {port} to {port + 7}.*--port"
        with pytest.raises(BadRequest, match=words), open_panel(None, port):
            raise AssertionError("it opened")
    with pytest.raises(BadRequest, match="leaves no room"), open_panel(None, 65535):
        raise AssertionError("it opened")


def test_the_command_serves_until_ctrl_c():
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "--port", "0", "--no-browser", "--task", "map/1202/11"],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = re.match(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert address is not None
        page = requests.get(address[0], timeout=60)
        assert "Kestermere General Hospital" in page.text
        shop = re.findall(r'data-url="([^"]+)"', page.text)[0]
        assert requests.get(shop, timeout=60).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
