"""`agentgym serve-retriever`: Search-R1's route and JSON, and what it says to bad calls."""

import json
import shutil
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from agentgym_servers.worlds.search.retrieval.__main__ import main
from agentgym_servers.worlds.search.retrieval.passages import Hit, RetrieverFailed
from agentgym_servers.worlds.search.retrieval.retriever import open_retriever
from agentgym_servers.worlds.search.retrieval.search_app import MAX_HITS, make_search_app
from hosting import HttpServer
from retrieving import FACTS, bm25_index, served_index, zipf_passages, zipf_queries

CURL = """curl -X POST ADDRESS/retrieve -H "Content-Type: application/json" -d '{
  "queries": ["What is Python?", "Tell me about neural networks."],
  "topk": 3,
  "return_scores": true
}'"""
"""As Search-R1's documentation has it."""


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return bm25_index(tmp_path_factory.mktemp("served"), [*FACTS, *zipf_passages(2_000)])


@pytest.fixture(scope="module")
def address(index):
    with served_index(index, "--max-body-mb", "1", "--topk", "2") as served:
        yield served.address()


def ask(address, **body):
    return requests.post(address + "/retrieve", json=body, timeout=60)


def test_search_r1s_documented_curl_example_works(address):
    if shutil.which("curl"):
        command = CURL.replace("ADDRESS", address)
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, check=True, timeout=60
        )
        reply = json.loads(done.stdout)
    else:
        reply = requests.post(
            address + "/retrieve", CURL.partition("-d '")[2][:-1], timeout=60,
            headers={"Content-Type": "application/json"},
        ).json()  # fmt: skip
    python, networks = reply["result"]
    assert {hit["document"]["id"] for hit in python} == {"py", "snake"}
    assert networks[0]["document"] == {"id": "nn", "contents": FACTS[1].contents}
    for hit in python + networks:
        assert set(hit) == {"document", "score"} and set(hit["document"]) == {"id", "contents"}
        assert isinstance(hit["score"], float) and hit["score"] > 0


def test_without_scores_the_answer_is_bare_documents(address):
    for body in ({"return_scores": False}, {}):
        reply = ask(address, queries=["python language"], topk=1, **body).json()
        assert reply == {"result": [[{"id": "py", "contents": FACTS[0].contents}]]}


def test_a_call_that_names_no_number_gets_the_servers(address):
    for body in ({}, {"topk": None}):
        (hits,) = ask(address, queries=["w0 w1"], **body).json()["result"]
        assert len(hits) == 2
    assert ask(address, queries=[]).json() == {"result": []}


def test_a_batch_is_answered_in_the_queries_order(address, index):
    queries = zipf_queries(256)
    reply = ask(address, queries=queries, topk=3, return_scores=True).json()["result"]
    expected = open_retriever(str(index)).search(queries, 3)
    assert [[(h["document"]["id"], h["score"]) for h in hits] for hits in reply] == [
        [(h.passage.id, pytest.approx(h.score)) for h in hits] for hits in expected
    ]


def test_calls_side_by_side_get_their_own_answers(address, index):
    queries = zipf_queries(64)
    expected = open_retriever(str(index)).search(queries, 3)

    def top(query):
        return [d["id"] for d in ask(address, queries=[query], topk=3).json()["result"][0]]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(top, queries)) == [[h.passage.id for h in hs] for hs in expected]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "the body is not JSON"),
        (b"{", 400, "the body is not JSON"),
        (b"\xff\xfe", 400, "the body is not JSON"),
        (b"[" * 100_000, 422, "Expected `object`, got `array`"),
        (b"[]", 422, "Expected `object`, got `array`"),
        (b"{}", 422, "missing required field `queries`"),
        (b'{"queries": "one"}', 422, "Expected `array`, got `str` - at `$.queries`"),
        (b'{"queries": [1]}', 422, "at `$.queries[0]`"),
        (b'{"queries": [null]}', 422, "at `$.queries[0]`"),
        (b'{"queries": [], "topk": 0}', 422, "Expected `int` >= 1"),
        (b'{"queries": [], "topk": -1}', 422, "Expected `int` >= 1"),
        (b'{"queries": [], "topk": "3"}', 422, "at `$.topk`"),
        (b'{"queries": [], "topk": true}', 422, "at `$.topk`"),
        (b'{"queries": ["a"], "return_scores": 1}', 422, "at `$.return_scores`"),
        (b'{"queries": ["a"], "topk": 100001}', 422, f"more than {MAX_HITS} passages"),
        (b'{"queries": ["' + b"x" * 2**20 + b'"]}', 413, "above 1048576 bytes"),
    ],
)
def test_a_bad_body_is_told_what_is_wrong_with_it(address, body, status, message):
    headers = {"Content-Type": "application/json"}
    reply = requests.post(address + "/retrieve", body, headers=headers, timeout=60)
    assert reply.status_code == status
    assert message in reply.json()["error"]["message"]


def test_other_paths_and_methods_are_refused(address):
    assert requests.get(address + "/other", timeout=60).json()["error"]["code"] == "unknown_route"
    refused = requests.get(address + "/retrieve", timeout=60)
    assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")
    assert requests.post(address + "/health", timeout=60).status_code == 405


def test_health_tells_what_is_served(address):
    health = requests.get(address + "/health", timeout=60).json()
    assert (health["status"], health["backend"], health["passages"]) == ("ok", "bm25", 2_004)
    assert health["versions"]["bm25s"] and health["corpus"]["sha256"]


class Blocked:
    """A retriever that answers when it is let go."""

    def __init__(self):
        self.asked, self.let_go = threading.Event(), threading.Event()

    def search(self, queries, k):
        self.asked.set()
        assert self.let_go.wait(120)
        return [[Hit(FACTS[0], 1.0)] for _ in queries]


def test_health_answers_while_a_search_runs():
    retriever = Blocked()
    server = HttpServer(None, make_search_app(retriever, {"status": "ok"}))
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(ask, server.address, queries=["x"])
        assert retriever.asked.wait(60)
        assert requests.get(server.address + "/health", timeout=60).json() == {"status": "ok"}
        assert not reply.done()
        retriever.let_go.set()
        assert reply.result().json()["result"][0][0]["id"] == "py"
    server.stop()


def test_a_call_under_way_is_answered_before_the_server_ends():
    retriever = Blocked()
    server = HttpServer(None, make_search_app(retriever, {"status": "ok"}))
    with ThreadPoolExecutor(2) as pool:
        reply = pool.submit(ask, server.address, queries=["x"])
        assert retriever.asked.wait(60)
        ended = pool.submit(server.stop)
        with pytest.raises(requests.ConnectionError):
            while not ended.done():
                requests.get(server.address + "/health", timeout=60)
        assert not reply.done()
        retriever.let_go.set()
        assert reply.result().status_code == 200
        ended.result()


class Failing:
    """A retriever behind which something is gone."""

    def search(self, queries, k):
        raise RetrieverFailed("the disk is gone")


def test_a_search_that_fails_is_a_bad_gateway_with_its_reason():
    server = HttpServer(None, make_search_app(Failing(), {}))
    reply = ask(server.address, queries=["x"])
    server.stop()
    assert reply.status_code == 502
    assert reply.json()["error"]["code"] == "retriever_failed"
    assert reply.json()["error"]["message"] == "the disk is gone"


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT]
)
def test_a_signal_ends_it_in_order(index, how):
    with served_index(index) as served:
        assert ask(served.address(), queries=["python"]).status_code == 200
        assert served.stop(how) == 0
        assert "stopped" in served.errors and "Traceback" not in served.errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/no/index"], "there is no index in /no/index; make one with `agentgym index"),
        (["INDEX", "--topk", "0"], "--topk is 1 to 100000, got 0"),
        (["INDEX", "--threads", "0"], "--threads is at least 1, got 0"),
    ],
)
def test_what_cannot_be_served_is_an_error_with_its_reason(ended, index, words, message):
    words = [str(index) if word == "INDEX" else word for word in words]
    status, errors = ended(main, "serve-retriever", *words)
    assert status == 1
    assert message in errors


def test_a_port_that_is_taken_is_an_error(ended, index):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, errors = ended(main, "serve-retriever", index, "--port", port)
    assert status == 1
    assert f"cannot listen on 127.0.0.1:{port}" in errors
