"""`agentgym serve`: as a process, and what it says where it cannot serve."""

import signal
import socket

import pytest
import requests

from agentgym_servers.__main__ import main


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_it_serves_and_ctrl_c_ends_it_in_order(run):
    served = run("worlds:Guess", "--port", "0", "--env-kwargs", '{"greeting": "Moin"}')
    address = served.address()
    assert address.startswith("http://127.0.0.1:")
    assert f"(protocol agentgym-sdk, clients connect to {address})" in served.errors
    (created,) = requests.post(address + "/v1/sessions", json=[{}], timeout=60).json()
    body = [{"session": created["session"], "seed": 0}]
    (reply,) = requests.post(address + "/v1/reset", json=body, timeout=60).json()
    assert reply["observation"].startswith("Moin, round")
    assert served.stop(signal.SIGINT) == 0


def test_the_settings_are_kept_and_sigterm_ends_it_in_order(run, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    served = run(
        "worlds:Guess", "--port", "0", "--token-file", str(token), "--max-sessions", "2",
        "--max-body-mb", "1", "--allowed-host", "gym.example",
    )  # fmt: skip
    address = served.address()
    assert requests.get(address + "/v1/env", timeout=60).status_code == 401
    headers = {"Authorization": "Bearer secret"}
    for host, status in (("gym.example", 200), ("other.example", 421)):
        card = requests.get(address + "/v1/env", headers={**headers, "Host": host}, timeout=60)
        assert card.status_code == status
    assert "--allowed-host NAME" in card.json()["error"]["message"]
    replies = requests.post(
        address + "/v1/sessions", json=[{}] * 3, headers=headers, timeout=60
    ).json()
    assert [r.get("error", {}).get("code") for r in replies] == [None, None, "too_many_sessions"]
    big = requests.post(address + "/v1/step", b" " * 2**21, headers=headers, timeout=60)
    assert big.status_code == 413
    assert served.stop(signal.SIGTERM) == 0


def test_the_process_ends_with_one_line_where_it_cannot_serve(run):
    served = run("nothing")
    _, errors = served.process.communicate(timeout=120)
    assert served.process.returncode == 1
    assert "no environment 'nothing'" in errors and "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worlds:Guess", "--env-kwargs", "{"], "--env-kwargs is not valid JSON"),
        (["worlds:Guess", "--env-kwargs", "[]"], "--env-kwargs must be a JSON object"),
        (["worlds:Guess", "--token-file", "/no/such/file"], "cannot read the token file"),
        (["worlds:Guess", "--protocol", "openevn"], "'openevn' is invalid; did you mean openenv?"),
        (["faulty_import:ListedTwice"], "cannot be loaded: ValueError: task 'a' is listed"),
        (["faulty_import:ListedTwice"], "tests/support/faulty_import.py:10)"),
        (["worlds:Guess", "--max-sessions", "0"], "max_sessions is at least 1, got 0"),
    ],
)
def test_what_cannot_be_served_is_an_error_with_its_reason(ended, arguments, message):
    status, errors = ended(main, *arguments)
    assert status == 1
    assert message in errors


def test_a_port_that_is_taken_is_an_error_with_the_remedy(ended):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, errors = ended(main, "worlds:Guess", "--port", port)
    assert status == 1
    assert f"cannot listen on 127.0.0.1:{port}" in errors and "choose another --port" in errors


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_printed_in_brackets(run):
    served = run("worlds:Guess", "--port", "0", "--host", "::1")
    address = served.address()
    assert address.startswith("http://[::1]:")
    assert requests.get(address + "/v1/env", timeout=60).status_code == 200
