"""Bodies of many small values, whose decoded form is many times as long: memory stays bounded."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest
import requests
from test_socket_floods import FIN, HELLO, TEXT, frame
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from agentgym_servers.host.codec import has_more_values
from attacking import MIB, under
from hosting import Served

SUPPORT = Path(__file__).parents[1] / "support"
ROW = '{"responses_create_params":{"x":[@]}}'
CALL = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":[@]}}}'
STEP = '{"action":{"message":"x","metadata":{"x":[@]}}}'
KEYS = ",".join(f'"{i}":{i}' for i in range(1_000_000))
WHERE = {
    "mcp": ("/mcp", CALL, "worlds:Guess"),
    "nemo-gym": ("/reset", ROW, "worlds:Guess"),
    "openenv": ("/step", STEP, "worlds:Guess"),
    "agentgym": ("/step", '{"id":0,"action":[@]}', "agentgym/TextCraft-v0"),
}


@contextmanager
def serve(protocol: str, *words: str) -> Iterator[Served]:
    extra = {"mcp": "mcp", "openenv": "websockets"}.get(protocol)
    if extra and importlib.util.find_spec(extra) is None:
        pytest.skip(f"needs {extra}")
    served = Served(SUPPORT, WHERE[protocol][2], "--protocol", protocol, "--port", "0", *words)
    served.address()
    try:
        yield served
    finally:
        status = served.stop()
    assert status == 0


@pytest.fixture
def nemo_gym() -> Iterator[Served]:
    with serve("nemo-gym", "--isolate") as served:
        yield served


def post(path: str, body: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    accept = "Accept: application/json, text/event-stream\r\n"
    return f"{head}{accept}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "inner"),
    [
        *((protocol, ",".join(["{}"] * (5 * MIB))) for protocol in WHERE),
        ("nemo-gym", ",".join(["1"] * (7 * MIB))),
        ("openenv", ",".join(["[[[]]]"] * (2 * MIB))),
        ("agentgym", "{" + KEYS + "}"),
        ("mcp", '"' + "{,[" * MIB + '",' + "{}," * (4 * MIB) + "{}"),
    ],
    ids=[*WHERE, "numbers", "nested lists", "keys", "after a text of braces"],
)
def test_bodies_of_many_values_are_not_decoded(protocol, inner):
    path, form, _ = WHERE[protocol]
    request = post(path, form.replace("@", inner))
    with serve(protocol) as server:
        with under(server, 4, lambda _: repeat(request, 3)) as attack:
            pass
        assert set(attack.statuses()) == {b"413"}
        sys.stdout.write(f"{protocol}: bodies of {len(request) / MIB:.0f} MiB are rejected\n")


@pytest.mark.slow
def test_rollouts_of_as_many_values_as_may_be_are_not_held_while_they_wait(nemo_gym):
    request = post("/reset", ROW.replace("@", ",".join(['{"a":[]}'] * 80_000)))
    with under(nemo_gym, 16, lambda _: repeat(request)):
        sys.stdout.write("nemo-gym: 16 clients begin episodes by rows of 240,000 values\n")


@pytest.mark.slow
def test_a_socket_with_such_a_message_is_closed_and_what_follows_is_dropped():
    message = json.dumps({"type": "step", "data": {"message": "x", "y": [{}] * 250_000}})

    def sends(number: int) -> Iterator[bytes]:
        yield HELLO
        yield from repeat(frame(TEXT | FIN, message.encode()))

    with serve("openenv") as server:
        with connect(server.address().replace("http", "ws") + "/ws") as client:
            client.send(message)
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(timeout=60)
        assert closed.value.rcvd.code == 1009
        with under(server, 200, sends):
            sys.stdout.write("openenv: sockets are closed for a message of many values\n")


def test_a_long_rollout_is_taken_and_one_of_many_values_is_not(nemo_gym):
    text = "Well, {now}, [I] go on: " * 180_000  # 4 MiB with 500,000 commas and brackets
    tokens = {"prompt_token_ids": list(range(100_000)), "generation_log_probs": [-0.5] * 100_000}
    output = [{"type": "message", "content": [{"type": "output_text", "text": "5"}], **tokens}]
    params = {"input": [{"role": "user", "content": text}]}
    with requests.Session() as agent:
        begun = agent.post(
            f"{nemo_gym.address()}/reset", json={"responses_create_params": params, "task": "5"}
        )
        step = {"responses_create_params": params, "response": {"output": output}}
        taken = agent.post(f"{nemo_gym.address()}/step", json=step)
        calls = [{"type": "function_call", "name": "act"}] * 1_001
        many = agent.post(
            f"{nemo_gym.address()}/step", json={**step, "response": {"output": calls}}
        )
        dense = agent.post(f"{nemo_gym.address()}/reset", json=[{}] * 300_000)
    assert begun.status_code == 200
    assert taken.json()["reward"] == 1.0
    assert many.status_code == 422
    assert dense.status_code == 413
    assert "250000 values" in dense.json()["error"]["message"]
    sys.stdout.write(f"nemo-gym: a rollout of {len(taken.request.body) / MIB:.0f} MiB is taken\n")


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (b"[" + b"1," * 99 + b"1]", False),
        (b"[" + b"1," * 100 + b"1]", True),
        (b'["' + b"[{," * 500 + b'"]', False),
        (b'["\\"' + b"[{," * 500 + b'"]', False),
        (b'["\\\\",' + b"[{," * 500, True),
        (b'"' + b"," * 500, False),  # a text that does not end
        (b"[" * 500, True),
    ],
)
def test_values_are_counted_outside_of_texts(body, more):
    assert has_more_values(body, 100) == more
