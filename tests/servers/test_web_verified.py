"""WebArena-Verified's format out of ours; its own evaluation runs where the package is."""

import json

import pytest

from agentgym_env.errors import MissingExtra
from agentgym_servers.web.actions.parse import parse_action
from agentgym_servers.web.chromium.interpreter import package_folder
from agentgym_servers.web.evaluation import verified
from agentgym_servers.web.evaluation.verified import (
    Exchange,
    Expected,
    demonstrated,
    har_entries,
    url_of,
    verified_task,
    verify,
)
from agentgym_servers.web.sites.site import Request, Response
from agentgym_servers.web.sites.site_map import embedded_sites
from agentgym_servers.web.tasks.tasks import read_tasks
from agentgym_servers.worlds.webarena import WebArena
from web_pages import task_json

needs_package = pytest.mark.skipif(
    package_folder("webarena_verified") is None,
    reason="WebArena-Verified is not installed; run `make setup-web`",
)
ADD = Exchange(
    Request("POST", "shop.test", "/cart/add", {}, {"sku": ["S 1"], "qty": ["2"]}, {"sid": "x"}),
    Response(status=302, location="/cart", cookies={"cart": "1", "old": None}),
    referer="http://shop.test/p/4",
)
SEARCH = Exchange(
    Request("GET", "shop.test", "/find it", {"q": ["a b", "c"]}), Response("<p>hi</p>")
)
REQUEST = {
    "url": "__SHOPPING__/cart/add",
    "http_method": "POST",
    "post_data": {"sku": "S 1"},
    "response_status": 302,
}


def own(expected):
    return verified_task(read_tasks(json.dumps([task_json()]))[0], expected)


def test_a_request_s_address_is_encoded():
    assert url_of(SEARCH.request) == "http://shop.test/find%20it?q=a+b&q=c"


def test_an_archive_tells_what_was_sent_and_where_it_led():
    entry, search = har_entries([ADD, SEARCH])
    assert entry["request"]["postData"]["text"] == "sku=S+1&qty=2"
    assert (entry["response"]["status"], entry["response"]["redirectURL"]) == (302, "/cart")
    assert entry["response"]["cookies"][1] == {"name": "old", "value": ""}
    assert {"name": "Referer", "value": "http://shop.test/p/4"} in entry["request"]["headers"]
    assert "postData" not in search["request"]
    assert search["response"]["content"]["text"] == "<p>hi</p>"
    json.dumps([entry, search])


def test_a_task_says_what_is_expected_of_the_answer_and_of_the_requests():
    task = own(Expected("retrieve", ["5"], requests=[REQUEST]))
    answer, request = task["eval"]
    assert answer["results_schema"] == {"type": "array", "items": {"type": "string"}}
    assert answer["expected"]["retrieved_data"] == ["5"]
    assert request == {"evaluator": "NetworkEventEvaluator", "expected": REQUEST}
    assert own(Expected("mutate"))["eval"][0]["results_schema"] == {"type": "null"}


def test_without_the_package_it_is_said_what_to_type(monkeypatch):
    monkeypatch.setattr(verified, "package_folder", lambda name: None)
    with pytest.raises(MissingExtra, match="make setup-web"):
        verify(own(Expected("mutate")), "{}", [ADD], embedded_sites())


@needs_package
@pytest.mark.slow
@pytest.mark.parametrize(
    ("expected", "answer", "score"),
    [
        (Expected("retrieve", [7.05]), {"task_type": "retrieve", "retrieved_data": [7.05]}, 1.0),
        (Expected("retrieve", [7.05]), {"task_type": "retrieve", "retrieved_data": [7.06]}, 0.0),
        (Expected("mutate", requests=[REQUEST]), {"task_type": "mutate"}, 1.0),
        (
            Expected("mutate", requests=[{**REQUEST, "post_data": {"sku": "S 2"}}]),
            {"task_type": "mutate"},
            0.0,
        ),
    ],
)
def test_the_package_judges_our_tasks_on_our_requests(expected, answer, score):
    said = {"status": "SUCCESS", "retrieved_data": None, "error_details": None, **answer}
    verdict = verify(own(expected), json.dumps(said), [SEARCH, ADD], embedded_sites())
    assert verdict == score


@needs_package
@pytest.mark.parametrize(
    "task",
    [
        "shopping/7101/0",
        pytest.param("shopping_admin/7310/4", marks=pytest.mark.slow),
        pytest.param("reddit/1011/10", marks=pytest.mark.slow),
    ],
)
def test_an_experts_trace_is_a_task_for_the_package_which_nothing_else_passes(task):
    env = WebArena()
    env.reset(seed=0, options={"task": task})
    untouched = env.exchanges()
    answer = ""
    while (action := env.expert_action()) is not None:
        _, reward, done, _, _ = env.step(action)
        if done:
            answer = parse_action(action).text(0)
            break
    expected = demonstrated(env.exchanges(), answer)
    written = verified_task(env._web_task, expected)
    told = {
        "task_type": expected.task_type,
        "status": "SUCCESS",
        "retrieved_data": None if expected.retrieved is None else list(expected.retrieved),
    }
    sites = embedded_sites()
    assert verify(written, json.dumps(told), env.exchanges(), sites) == reward == 1
    wrong = {**told, "retrieved_data": ["something else"] if expected.retrieved else None}
    assert verify(written, json.dumps(wrong), untouched, sites) == 0
    env.close()
