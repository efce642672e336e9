"""`--protocol agentgym` answers as AgentGym's SearchQA server does."""

import re
from itertools import count

import pytest
import requests

from agentgym_servers.host.app import make_app
from agentgym_servers.host.protocols.agentgym import original_protocol
from agentgym_servers.worlds.search.corpora import open_world
from agentgym_servers.worlds.search.env import Search
from hosting import HttpServer
from recordings import recorded

SEARCH = "agentgym/Search-v0"
DOCUMENT = r"Doc \d\(Title: \"[^\"\n]+\"\) [^\n]+"


@pytest.fixture(scope="module")
def zones():
    """The questions of time zones, in the order of their numbers."""
    world = open_world("timezones")
    return [*world.questions["test"], *world.questions["train"]]


@pytest.fixture
def server(make_host):
    host = make_host(lambda: Search(corpus="timezones", legacy=True), env_id=SEARCH)
    served = HttpServer(
        host, make_app(host, original_protocol(host, SEARCH, 3600.0, count().__next__))
    )
    yield served
    served.stop()


def call(server, method, path, *, query=None, body=None):
    return requests.request(method, server.address + path, params=query, json=body, timeout=60)


def post(server, path, **body):
    return call(server, "POST", path, body=body).json()


def test_recorded_exchanges_have_the_same_shape_here(server, zones):
    rows = recorded("searchqa")
    asked, ended = {}, {}
    for row in rows:
        body, query = dict(row["request"] or {}), dict(row.get("query") or {})
        for given in (body, query):
            if "env_idx" in given:
                given["env_idx"] = int(given["env_idx"]) - 1  # the recording begins at 1
        action = body.get("action", "")
        number = body.get("env_idx")
        if row["path"] == "/reset":
            asked[number], ended[number] = zones[body["id"]], False
        if row["path"] == "/step" and row["response"]["reward"] == 1.0:
            body["action"] = f"<answer> {asked[number].answers[0]} </answer>"
        if "<search>" in action:
            body["action"] = f"<think>I look.</think><search>{asked[number].text}</search>"
        answer = call(server, row["method"], row["path"], query=query or None, body=body or None)
        theirs, ours = row["response"], answer.json()
        assert answer.status_code == row["status"] and type(ours) is type(theirs), row
        assert answer.headers["content-type"].startswith(row["content_type"])
        if isinstance(theirs, str):
            assert ours.rpartition("\n\n Question: ")[2] == asked[query.get("env_idx", number)].text
        elif isinstance(theirs, bool):
            assert ours is theirs
        elif isinstance(theirs, int):
            assert ours == theirs - 1
        elif ended[number]:
            assert (ours["reward"], ours["done"]) == (0.0, True), "an episode that ended stays so"
        else:
            assert_the_same_step(ours, theirs, action)
            ended[number] = ours["done"]
    assert len(rows) == 121 and len(asked) == 16


def assert_the_same_step(ours, theirs, action):
    assert list(ours) == list(theirs)
    assert {name: type(value) for name, value in ours.items()} == {
        name: type(value) for name, value in theirs.items()
    }
    assert (ours["reward"], ours["done"], ours["info"]) == (
        theirs["reward"], theirs["done"], theirs["info"],
    )  # fmt: skip
    if "<search>" not in action:
        return  # replies are in words of our own
    form = rf"<information>({DOCUMENT}\n){{0,2}}{DOCUMENT}</information>"
    for observation in (ours["observation"], theirs["observation"]):
        assert re.fullmatch(form, observation), observation


def test_an_episode_with_the_original_field_names(server, zones):
    assert call(server, "GET", "/").json() == "ok"
    assert post(server, "/create", id=3) == 0
    first = call(server, "GET", "/observation", query={"env_idx": 0}).json()
    assert first.endswith(f"\n\n Question: {zones[3].text}") and "<search>" in first
    assert post(server, "/reset", env_idx=0, id=0).endswith(f" Question: {zones[0].text}")
    wrong = post(server, "/step", env_idx=0, action="<answer>nobody</answer>")
    assert wrong == {
        "observation": "Sorry, your answer is incorrect. Please try again.", "reward": 0.0,
        "done": False, "info": None,
    }  # fmt: skip
    right = f"<answer>{zones[0].answers[0]}</answer>"
    assert post(server, "/step", env_idx=0, action=right)["reward"] == 1.0
    again = post(server, "/step", env_idx=0, action=right)
    assert (again["reward"], again["done"]) == (0.0, True), "not rewarded twice"
    now = call(server, "GET", "/observation", query={"env_idx": "0"}).json()
    assert now.endswith(f" Question: {zones[0].text}"), "always the first one"
    assert [post(server, "/close", env_idx=0) for _ in range(2)] == [True, False]


def test_what_is_wrong_with_a_call_is_said_and_never_a_500(server):
    assert "no task 'searchqa_950'" in post(server, "/create", id=950)["error"]
    assert len(server.host.table) == 0, "a create that fails leaves no session"
    number = post(server, "/create", id=0)
    assert "Name the question" in post(server, "/reset", env_idx=number, id=None)["error"]
    assert "Name the question" in post(server, "/reset", env_idx=number)["error"]
    assert "no task 'searchqa_-1'" in post(server, "/reset", env_idx=number, id=-1)["error"]
    lost = {"error": "The id 99 is not valid."}
    assert post(server, "/reset", env_idx=99, id=0) == lost
    assert post(server, "/step", env_idx=99, action="x") == lost
    assert call(server, "GET", "/observation", query={"env_idx": 99}).json() == lost
    assert call(server, "POST", "/create", body={}).status_code == 422
    surrogate = post(server, "/step", env_idx=number, action="\ud800")
    assert surrogate["observation"].startswith("Your previous action is invalid.")
