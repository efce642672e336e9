"""`agentgym serve` as a process."""

import signal

import pytest
import requests


def test_it_serves_and_ctrl_c_ends_it_in_order(run):
    served = run("worlds:Guess", "--port", "0", "--env-kwargs", '{"greeting": "Moin"}')
    address = served.address()
    assert address.startswith("http://127.0.0.1:")
    (created,) = requests.post(address + "/v1/sessions", json=[{}], timeout=5).json()
    body = [{"session": created["session"], "seed": 0}]
    (reply,) = requests.post(address + "/v1/reset", json=body, timeout=5).json()
    assert reply["observation"].startswith("Moin, round")
    assert served.stop(signal.SIGINT) == 0


def test_sigterm_ends_it_in_order(run):
    served = run("worlds:Guess", "--port", "0")
    served.address()
    assert served.stop(signal.SIGTERM) == 0


def test_the_settings_are_kept(run, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    served = run(
        "worlds:Guess", "--port", "0", "--token-file", str(token), "--max-sessions", "2",
        "--max-body-mb", "1",
    )  # fmt: skip
    address = served.address()
    assert requests.get(address + "/v1/env", timeout=5).status_code == 401
    headers = {"Authorization": "Bearer secret"}
    replies = requests.post(
        address + "/v1/sessions", json=[{}] * 3, headers=headers, timeout=5
    ).json()
    assert [r.get("error", {}).get("code") for r in replies] == [None, None, "too_many_sessions"]
    big = requests.post(address + "/v1/step", b" " * 2**21, headers=headers, timeout=5)
    assert big.status_code == 413


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no environment 'nothing'"),
        (["worlds:Guess", "--env-kwargs", "{"], "--env-kwargs is not valid JSON"),
        (["worlds:Guess", "--env-kwargs", "[]"], "--env-kwargs must be a JSON object"),
        (["worlds:Guess", "--token-file", "/no/such/file"], "cannot read the token file"),
        (["worlds:Guess", "--protocol", "openevn"], "'openevn' is invalid; did you mean openenv?"),
        (["worlds:Guess", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8000"),
        (
            ["faulty_import:ListedTwice"],
            "cannot be loaded: ValueError: task 'a' is listed",
        ),
        (["faulty_import:ListedTwice"], "tests/support/faulty_import.py:10)"),
        (["worlds:Guess", "--max-sessions", "0"], "max_sessions is at least 1, got 0"),
    ],
)
def test_what_cannot_be_served_is_one_line(run, arguments, message):
    served = run(*arguments)
    _, errors = served.process.communicate(timeout=20)
    assert served.process.returncode == 1
    assert message in errors and "Traceback" not in errors


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ("agentgym-sdk", "clients connect to {0})"),
        ("mcp", "clients connect to {0}/mcp)"),
    ],
)
def test_the_protocol_and_the_address_for_its_clients_are_printed(run, protocol, said):
    if protocol == "mcp":
        pytest.importorskip("mcp")
    served = run("worlds:Guess", "--port", "0", "--protocol", protocol)
    address = served.address()
    assert f"protocol {protocol}, " + said.format(address) in served.errors


def test_an_address_of_ipv6_is_printed_in_brackets(run):
    served = run("worlds:Guess", "--port", "0", "--host", "::1")
    address = served.address()
    assert address.startswith("http://[::1]:")
    assert requests.get(address + "/v1/env", timeout=5).status_code == 200
