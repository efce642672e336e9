"""Every refusal has the status and the code that docs/http.md documents."""

import re
from pathlib import Path

import pytest
import requests

from agentgym_env.wire import STATUS
from agentgym_servers.host.routes import ON_EVERY_ROUTE, ON_ROUTES_WITH_A_BODY, ROUTES

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
TOKEN = {"Authorization": "Bearer secret"}


def documented() -> dict[str, int]:
    """The table of codes."""
    table: dict[str, int] = {}
    for row in re.findall(r"^\| ((?:`\w+`,? ?)+) \| ([\d, ]+) \|", PAGE.read_text(), re.M):
        codes = re.findall(r"`(\w+)`", row[0])
        statuses = [int(number) for number in row[1].split(",")]
        table.update(zip(codes, statuses * (len(codes) // len(statuses)), strict=True))
    return table


def test_the_table_is_the_servers_own():
    assert documented() == STATUS


def test_every_code_belongs_to_a_route():
    of_routes = {code for route in ROUTES for code in route.codes}
    every = of_routes | set(ON_EVERY_ROUTE) | set(ON_ROUTES_WITH_A_BODY) | {"unknown_route"}
    assert every == set(STATUS)


STEP = b'[{"session": "%s", "turn": %s, "action": %s}]'


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/step", b"[{", "bad_request"),
        ("/v1/step", b"\xff\xfe", "bad_request"),
        ("/v1/step", b"", "bad_request"),
        ("/v1/step", b"null", "bad_request"),
        ("/v1/step", b"[" * 100_000, "bad_request"),
        ("/v1/step", STEP % (b"NAME", b"NaN", b'"x"'), "bad_request"),
        ("/v1/step", STEP % (b"NAME", b"1.5", b'"x"'), "bad_request"),
        ("/v1/step", STEP % (b"NAME", b"1", b"NaN"), "bad_request"),
        ("/v1/step", STEP % (b"NAME", b"1", b"7"), "bad_request"),
        ("/v1/step", b'[{"session": "NAME", "turn": 1}]', "bad_request"),
        ("/v1/step", b'[{"session": "NAME", "turn": 1, "action": "", "x": 1}]', "bad_request"),
        ("/v1/reset", b'[{"session": "NAME", "seed": NaN}]', "bad_request"),
        ("/v1/reset", b'[{"session": "NAME", "seed": -1}]', "bad_request"),
        ("/v1/reset", b'[{"session": "NAME", "seed": 1e400}]', "bad_request"),
        ("/v1/reset", b'[{"session": "NAME", "task": "nowhere"}]', "unknown_task"),
        ("/v1/reset", b'[{"session": "NAME", "split": "nowhere"}]', "unknown_split"),
        ("/v1/step", STEP % (b"nobody", b"1", b'"x"'), "unknown_session"),
        ("/v1/step", STEP % (b"NAME", b"5", b'"x"'), "stale_turn"),
        ("/v1/step", STEP % (b"NAME", b"-1", b'"x"'), "stale_turn"),
        ("/v1/step", b" " * (50 * 2**20), "too_large"),
        ("/v1/nowhere", b"[]", "unknown_route"),
        ("/v1/env", b"[]", "wrong_method"),
    ],
)
def test_what_a_call_is_refused_with(serve, path, body, code):
    server = serve()
    (created,) = requests.post(server.address + "/v1/sessions", json=[{}], timeout=60).json()
    name = created["session"]
    requests.post(server.address + "/v1/reset", json=[{"session": name, "seed": 0}], timeout=60)
    answer = requests.post(
        server.address + path,
        body.replace(b"NAME", name.encode()),
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    told = answer.json()
    error = told[0]["error"] if isinstance(told, list) else told["error"]
    assert (answer.status_code, error["code"]) == (documented()[code], code)
    assert error["message"]
    # And nothing is lost by it: the episode goes on.
    body = [{"session": name, "turn": 1, "action": "1"}]
    assert requests.post(server.address + "/v1/step", json=body, timeout=60).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
def test_no_token_and_a_wrong_one_are_turned_away(serve, headers):
    server = serve(token="secret")
    for route in ROUTES:
        if route.path == "/health":
            continue
        answer = requests.request(
            route.method, server.address + route.path, headers=headers, timeout=60
        )
        code = answer.json()["error"]["code"]
        assert (answer.status_code, code) == (documented()["unauthorized"], "unauthorized")
    assert requests.get(server.address + "/v1/env", headers=TOKEN, timeout=60).ok
