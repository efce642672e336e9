"""The host over real HTTP: routes, statuses, limits, and what happens to bad input."""

import http.client
import json
import socket

import msgspec
import pytest
import requests

from agentgym_env.wire import MSGPACK, CreateReply, EnvCard, TaskList, encode
from hosting import Clock
from waiting import until
from worlds import Trouble


def post(server, path: str, items, **headers: str) -> requests.Response:
    return requests.post(server.address + path, json=items, headers=headers, timeout=60)


def open_and_reset(server, count: int = 1, **reset) -> list[str]:
    names = [reply["session"] for reply in post(server, "/v1/sessions", [{}] * count).json()]
    reset = {"seed": 0, "task": "5"} | reset
    assert post(server, "/v1/reset", [{"session": n} | reset for n in names]).ok
    return names


def error_of(response: requests.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_a_whole_episode_over_http(serve):
    server = serve()
    (session,) = open_and_reset(server)
    body = [{"session": session, "turn": 1, "action": "5"}]
    (reply,) = post(server, "/v1/step", body).json()
    assert reply["terminated"] and reply["reward"] == 1.0 and "error" not in reply
    assert post(server, "/v1/expert", [{"session": session}]).status_code == 409
    assert post(server, "/v1/close", [{"session": session}]).json() == [
        {"session": session, "closed": True}
    ]


def test_a_batch_is_200_unless_every_item_failed(serve):
    server = serve()
    (session,) = open_and_reset(server)
    good = {"session": session, "turn": 1, "action": "1"}
    stale = {"session": session, "turn": 9, "action": "1"}
    unknown = {"session": "nobody", "turn": 1, "action": "1"}
    mixed = post(server, "/v1/step", [good, stale, unknown])
    assert mixed.status_code == 200
    assert [item.get("error", {}).get("code") for item in mixed.json()] == [
        None, "stale_turn", "unknown_session",
    ]  # fmt: skip
    assert post(server, "/v1/step", [stale, unknown]).status_code == 409
    assert post(server, "/v1/step", [unknown, stale]).status_code == 404
    assert post(server, "/v1/step", []).json() == []


def test_messagepack_is_spoken_on_request(serve):
    server = serve()
    headers = {"Content-Type": MSGPACK}
    body = msgspec.msgpack.encode([{}])
    response = requests.post(server.address + "/v1/sessions", body, headers=headers, timeout=60)
    assert response.headers["content-type"] == MSGPACK
    (created,) = msgspec.msgpack.decode(response.content, type=list[CreateReply])
    both = headers | {"Accept": "application/json"}
    body = msgspec.msgpack.encode([{"session": created.session, "seed": 1}])
    response = requests.post(server.address + "/v1/reset", body, headers=both, timeout=60)
    assert response.json()[0]["turn"] == 0
    card = requests.get(server.address + "/v1/env", headers={"Accept": MSGPACK}, timeout=60)
    assert msgspec.msgpack.decode(card.content, type=EnvCard).env == "tests/Guess-v0"


def test_the_card_and_the_tasks_are_told(serve):
    server = serve()
    card = msgspec.json.decode(requests.get(server.address + "/v1/env", timeout=60).content)
    assert card["splits"] == {"train": 6, "test": 3} and card["protocol"] == 2
    tasks = requests.get(server.address + "/v1/tasks?split=test", timeout=60)
    assert msgspec.json.decode(tasks.content, type=TaskList).tasks == ["7", "8", "9"]
    unknown = requests.get(server.address + "/v1/tasks?split=dev", timeout=60)
    assert error_of(unknown) == (404, "unknown_split")
    assert error_of(requests.get(server.address + "/v1/tasks", timeout=60)) == (400, "bad_request")


BAD_BODIES = {
    "empty": b"",
    "not JSON": b"{",
    "not a list": b"{}",
    "not UTF-8": b'[{"session": "\xff", "turn": 1, "action": "a"}]',
    "lone surrogate": b'[{"session": "\\ud800", "turn": 1, "action": "a"}]',
    "NaN": b'[{"session": "s", "turn": NaN, "action": "a"}]',
    "infinite": b'[{"session": "s", "turn": 1e999, "action": "a"}]',
    "huge integer": b'[{"session": "s", "turn": ' + b"9" * 10_000 + b', "action": "a"}]',
    "wrong type": b'[{"session": "s", "turn": 1, "action": 3}]',
    "missing field": b'[{"session": "s", "turn": 1}]',
    "unknown field": b'[{"session": "s", "turn": 1, "action": "a", "seed": 1}]',
    "deep": b"[" * 100_000,
    "deep value": b'[{"session": ' + b'{"a":' * 4_000,
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_a_bad_body_is_a_bad_request(serve, body):
    headers = {"Content-Type": "application/json"}
    response = requests.post(serve().address + "/v1/step", body, headers=headers, timeout=60)
    assert error_of(response) == (400, "bad_request")
    assert "/v1/step" in response.json()["error"]["message"]


def test_a_body_deeper_than_the_limit_of_items_is_not_decoded(serve):
    body = b'[{"session": ' + b'{"a":' * 100_000
    headers = {"Content-Type": "application/json"}
    response = requests.post(serve().address + "/v1/step", body, headers=headers, timeout=60)
    assert error_of(response) == (413, "too_many_items")


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
def test_a_turn_beyond_64_bits_is_rejected_and_the_episode_goes_on(serve, accept):
    server = serve()
    (session,) = open_and_reset(server)
    for turn in (2**80, 2**70, -(2**70)):
        response = requests.post(
            f"{server.address}/v1/step",
            json=[{"session": session, "turn": turn, "action": "a"}],
            headers={"Accept": accept}, timeout=60,
        )  # fmt: skip
        assert response.status_code == 400, response.content
    response = post(server, "/v1/step", [{"session": session, "turn": 2**62, "action": "a"}])
    assert response.status_code == 409
    response = post(server, "/v1/step", [{"session": session, "turn": 1, "action": "a"}])
    assert response.status_code == 200


def test_a_browsers_form_cannot_drive_the_server(serve):
    for content_type in ("text/plain", "application/x-www-form-urlencoded"):
        headers = {"Content-Type": content_type}
        response = requests.post(
            serve().address + "/v1/sessions", b"[{}]", headers=headers, timeout=60
        )
        assert error_of(response) == (415, "unsupported_media_type")


def ask(server, method: str, path: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=60)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("DELETE", "/nothing/%00%ff"), ("GET", "//v1/env")]
)
def test_other_routes_are_unknown(serve, method, path):
    response, body = ask(serve(), method, path)
    assert (response.status, json.loads(body)["error"]["code"]) == (404, "unknown_route")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/step", "POST"), ("PUT", "/v1/step", "POST"), ("POST", "/v1/env", "GET")],
)
def test_a_route_names_the_method_it_takes(serve, method, path, allowed):
    response, body = ask(serve(), method, path)
    assert (response.status, json.loads(body)["error"]["code"]) == (405, "wrong_method")
    assert response.getheader("Allow") == allowed


def test_the_token_is_asked_for_everywhere_but_at_health(serve):
    server = serve(token="open sesame")
    for given in (
        "",
        "Bearer wrong",
        "Basic open sesame",
        "Bearer open sesame ",
        "open sesame",
        "Bearer \xff",
    ):
        headers = {"Authorization": given.encode("latin-1")} if given else {}
        response = requests.get(server.address + "/v1/env", headers=headers, timeout=60)
        expected = 200 if given.strip() == "Bearer open sesame" else 401
        assert response.status_code == expected
    assert error_of(post(server, "/v1/sessions", [{}])) == (401, "unauthorized")
    assert post(server, "/v1/sessions", [{}], Authorization="Bearer open sesame").ok
    assert requests.get(server.address + "/metrics", timeout=60).status_code == 401
    assert requests.get(server.address + "/health", timeout=60).json()["status"] == "ok"


def test_a_body_above_the_limit_is_refused(serve):
    server = serve(max_body_bytes=1000)
    assert error_of(post(server, "/v1/sessions", [{"env": "x" * 1000}])) == (413, "too_large")
    assert post(server, "/v1/sessions", [{"env": "x" * 900}]).status_code == 400


def test_a_body_that_hides_its_size_is_cut_off_at_the_limit(serve):
    server = serve(max_body_bytes=1000)
    pieces = (b"x" * 500 for _ in range(5))
    response = requests.post(server.address + "/v1/sessions", pieces, timeout=60)
    assert error_of(response) == (413, "too_large")


def test_a_body_of_50_megabytes_is_refused_by_default(serve):
    server = serve()
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST /v1/step HTTP/1.1\r\nHost: {host}\r\nContent-Length: {50 * 2**20}\r\n\r\n"
        connection.sendall(head.encode())
        answer = b""
        while b"too_large" not in answer and (part := connection.recv(4096)):
            answer += part
    assert b" 413 " in answer.split(b"\r\n")[0] and b"too_large" in answer


def test_a_world_that_raises_is_a_500_of_its_item_alone(serve):
    server = serve(Trouble, env_id="tests/Trouble-v0")
    bad, good = open_and_reset(server, 2, task="fine")
    items = [
        {"session": bad, "turn": 1, "action": "raise"},
        {"session": good, "turn": 1, "action": "hello"},
    ]
    response = post(server, "/v1/step", items)
    assert response.status_code == 200
    assert response.json()[0]["error"]["code"] == "environment_error"
    assert response.json()[1]["observation"] == "You said hello"
    assert post(server, "/v1/step", items[:1]).status_code == 500


@pytest.mark.parametrize("action", ["object", "loop"])
def test_an_info_that_cannot_travel_is_the_environments_fault(serve, action):
    server = serve(Trouble, env_id="tests/Trouble-v0")
    bad, good = open_and_reset(server, 2, task="fine")
    items = [
        {"session": bad, "turn": 1, "action": action},
        {"session": good, "turn": 1, "action": "hello"},
    ]
    failed, fine = post(server, "/v1/step", items).json()
    assert failed["error"]["code"] == "environment_error" and failed["session"] == bad
    assert fine["observation"] == "You said hello"
    assert post(server, "/v1/step", items[:1]).json() == [failed]
    items[0]["turn"] = 2
    assert post(server, "/v1/step", items[:1]).json()[0]["error"]["code"] == "episode_over"


def test_metrics_count_what_happened(serve):
    server = serve()
    (session,) = open_and_reset(server)
    items = [{"session": session, "turn": t, "action": "1"} for t in (1, 2, 9)]
    post(server, "/v1/step", items)
    requests.get(server.address + "/wp-login.php", timeout=60)
    page = requests.get(server.address + "/metrics", timeout=60)
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in (
        "agentgym_sessions 1",
        "agentgym_steps_total 2",
        'agentgym_requests_total{route="/v1/step"} 1',
        'agentgym_requests_total{route="unknown"} 1',
        'agentgym_items_total{route="/v1/step"} 3',
        'agentgym_errors_total{code="stale_turn"} 1',
    ):
        assert line in page.text.splitlines()


def test_idle_sessions_are_reaped_without_a_call(serve):
    clock = Clock()
    server = serve(ttl_s=0.2, clock=clock)  # it looks for idle sessions that often
    open_and_reset(server, 3)
    clock.now += 1
    until(lambda: not len(server.host.table), "they are not reaped")
    assert server.host.table.figures().reaped == 3


def test_the_openapi_document_tells_the_truth_about_the_messages(serve):
    server = serve()
    document = requests.get(server.address + "/openapi.json", timeout=60).json()
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {
        "/v1/sessions", "/v1/reset", "/v1/step", "/v1/close", "/v1/expert",
        "/v1/actions", "/v1/renew", "/v1/env",
        "/v1/tasks", "/health", "/metrics", "/openapi.json",
    }  # fmt: skip
    schemas = document["components"]["schemas"]
    assert schemas["StepRequest"]["required"] == ["session", "turn", "action"]
    assert schemas["StepRequest"]["additionalProperties"] is False
    step = document["paths"]["/v1/step"]["post"]
    assert step["requestBody"]["content"]["application/json"]["schema"]["items"] == {
        "$ref": "#/components/schemas/StepRequest"
    }
    for part in ("StepReply", "ResetReply", "EnvCard", "TaskList", "ErrorBody", "WireError"):
        assert part in schemas
    assert {"200", "400", "401", "404", "409", "413"} <= set(step["responses"])


def test_in_process_and_http_agree_to_the_byte(serve, make_host):
    server, host = serve(), make_host()

    def both(path: str, http_items, local_items) -> None:
        over_http = post(server, path, http_items)
        status, content_type, body = host.handle(
            "POST", path, "", encode(local_items), "application/json"
        )
        assert over_http.status_code == status
        assert over_http.headers["content-type"] == content_type
        return over_http.content, body

    first, second = (msgspec.json.decode(b, type=list[CreateReply])[0].session
                     for b in both("/v1/sessions", [{}], [{}]))  # fmt: skip
    rounds = [
        ("/v1/reset", {"seed": 7, "split": "test"}),
        ("/v1/step", {"turn": 1, "action": "🙂 é"}),
        ("/v1/step", {"turn": 5, "action": "1"}),
        ("/v1/expert", {}),
        ("/v1/reset", {"task": "none"}),
        ("/v1/close", {}),
    ]
    for path, fields in rounds:
        over_http, local = both(path, [{"session": first} | fields], [{"session": second} | fields])
        assert over_http.replace(first.encode(), b"S") == local.replace(second.encode(), b"S")
