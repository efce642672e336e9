"""A retriever behind HTTP: ours, one that answers as Search-R1's does, and broken ones."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.retrieval.passages import Passage, RetrieverFailed
from agentgym_servers.worlds.search.retrieval.remote import RemoteRetriever
from agentgym_servers.worlds.search.retrieval.retriever import open_retriever
from agentgym_servers.worlds.search.retrieval.search_app import make_search_app
from hosting import HttpServer, nobody
from retrieving import FACTS, bm25_index, zipf_passages, zipf_queries


@pytest.fixture
def answering():
    """Starts a server that gives one answer to every call; `server.asked` has the bodies."""
    servers = []

    def start(body, status=200):
        class Answer(BaseHTTPRequestHandler):
            def do_POST(self):
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                server.asked.append((self.path, json.loads(sent)))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        server.daemon_threads = True
        server.asked = []
        server.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_our_own_server_gives_what_its_index_gives(tmp_path):
    index = bm25_index(tmp_path, [*FACTS, *zipf_passages(300)])
    queries = [*zipf_queries(50), "naïve 東京", "\ud800", ""]
    retriever = open_retriever(str(index))
    server = HttpServer(None, make_search_app(retriever, {}))
    remote = open_retriever(server.address + "/")
    theirs = remote.search(queries, 4)
    assert remote.search([], 4) == []
    server.stop()
    ours = retriever.search(queries, 4)
    assert [[h.passage for h in hs] for hs in theirs] == [[h.passage for h in hs] for hs in ours]
    scores = [[h.score for h in hs] for hs in theirs]
    assert scores == [[pytest.approx(h.score) for h in hs] for hs in ours]


def test_an_answer_of_search_r1s_own_servers_is_read(answering):
    dense = {"document": {"id": "7", "contents": '"T"\ntext'}, "score": 0.83}
    bm25 = {"document": {"title": "T", "text": "text", "contents": '"T"\ntext'}, "score": 11}
    server = answering(json.dumps({"result": [[dense, bm25, dense], []]}).encode())
    found = RemoteRetriever(server.address + "/retrieve").search(["a", "b"], 2)
    assert [hit.passage for hit in found[0]] == [
        Passage("7", '"T"\ntext'), Passage("", '"T"\ntext'),
    ]  # fmt: skip
    assert [hit.score for hit in found[0]] == [0.83, 11.0] and found[1] == []
    assert server.asked == [
        ("/retrieve", {"queries": ["a", "b"], "topk": 2, "return_scores": True})
    ]


def test_a_server_that_is_dead_is_a_failure_that_names_it():
    with nobody() as place:
        said = f"lost: http://{place} cannot be reached after 2 attempts"
        with pytest.raises(RetrieverFailed, match=said):
            RemoteRetriever(f"http://{place}", retries=1).search(["a"], 3)


def test_a_server_that_hangs_is_a_failure_within_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RetrieverFailed, match=r"did not answer within 0.3 s"):
            RemoteRetriever(address, timeout_s=0.3).search(["a"], 3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "answered nonsense"),
        (b"<html>welcome</html>", "answered nonsense"),
        (b"\xff\xff", "answered nonsense"),
        (b'{"result": [[{"document": {"contents": "x"}, "score": NaN}]]}', "answered nonsense"),
    ],
)
def test_nonsense_is_a_failure_that_says_what_is_wrong(answering, body, message):
    with pytest.raises(RetrieverFailed, match=message):
        RemoteRetriever(answering(body).address).search(["a"], 3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 100_000, "another format"),
        (b"[]", "another format: Expected `object`, got `array`"),
        (b"{}", "another format: Object missing required field `result`"),
        (b'{"result": null}', "another format"),
        (b'{"result": [{"id": "1", "contents": "x"}]}', "another format"),
        (b'{"result": [[{"id": "1", "contents": "x"}]]}', "another format"),
        (b'{"result": [[{"document": {"id": "1"}, "score": 1}]]}', "field `contents`"),
        (b'{"result": [[{"document": {"contents": "x"}, "score": null}]]}', "`null`"),
        (b'{"result": []}', "with 0 lists as its `result` for 1 queries"),
        (b'{"result": [[], []]}', "with 2 lists as its `result` for 1 queries"),
    ],
)
def test_another_format_is_an_error_that_names_the_field(answering, body, message):
    with pytest.raises(BadRequest, match=message):
        RemoteRetriever(answering(body).address).search(["a"], 3)


@pytest.mark.parametrize(("status", "tries"), [(500, 1), (404, 1), (422, 1), (302, 1), (503, 2)])
def test_a_status_of_failure_is_one_here(answering, status, tries):
    server = answering(b"no", status)
    with pytest.raises(RetrieverFailed, match=str(status)):
        RemoteRetriever(server.address, retries=1).search(["a"], 3)
    assert len(server.asked) == tries


def test_an_address_and_a_number_of_hits_are_checked():
    with pytest.raises(BadRequest, match="a server address must look like"):
        open_retriever("http://")
    with pytest.raises(BadRequest, match="at least 1 passage, got k 0"):
        RemoteRetriever("http://127.0.0.1:1").search(["a"], 0)
