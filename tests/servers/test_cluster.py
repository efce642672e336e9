"""`--workers N` for worlds that step inline: any process can be asked for any session."""

import os
import signal
import time

import psutil
import pytest
import requests

from agentgym_env import EnvClient, EnvironmentLost


@pytest.fixture
def cluster(run):
    """A server of three processes and its address."""
    served = run("worlds:Guess", "--port", "0", "--workers", "3", "--max-sessions", "20")
    return served, served.address()


def post(address, path, items):
    # A connection of its own: the kernel may give it to any process.
    return requests.post(address + path, json=items, timeout=10, headers={"Connection": "close"})


def metric(address, name):
    page = requests.get(address + "/metrics", timeout=10, headers={"Connection": "close"}).text
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(name + " "))


def test_any_process_answers_for_any_session(cluster):
    _, address = cluster
    names = [r["session"] for r in post(address, "/v1/sessions", [{}] * 9).json()]
    assert {name[0] for name in names} == set("012")
    resets = [{"session": name, "task": "5", "seed": 0} for name in names]
    assert post(address, "/v1/reset", resets).ok
    for turn in range(1, 13):
        items = [{"session": name, "turn": turn, "action": "4"} for name in names]
        replies = post(address, "/v1/step", items).json()
        assert [r["session"] for r in replies] == names
        assert all("error" not in r and r["info"]["turn"] == turn for r in replies)
    assert metric(address, "agentgym_steps_total") == 9 * 12
    assert metric(address, "agentgym_sessions") == 9
    assert post(address, "/v1/close", [{"session": n} for n in names]).json() == [
        {"session": name, "closed": True} for name in names
    ]


def test_unknown_names_are_refused_whatever_they_begin_with(cluster):
    _, address = cluster
    for name in ("", "nobody", "1.nobody", "7.x", "99999999999.x", ".", "\u0663.x"):
        reply = post(address, "/v1/step", [{"session": name, "turn": 1, "action": ""}])
        assert (reply.status_code, reply.json()[0]["error"]["code"]) == (404, "unknown_session")


def test_the_limit_of_sessions_is_the_whole_servers(cluster):
    _, address = cluster
    replies = post(address, "/v1/sessions", [{}] * 21).json()
    assert [r.get("error", {}).get("code") for r in replies].count("too_many_sessions") == 1
    one = next(r["session"] for r in replies if "error" not in r)
    post(address, "/v1/close", [{"session": one}])
    for _ in range(3):  # whichever process is asked, the one with room is found
        (reply,) = post(address, "/v1/sessions", [{}]).json()
        assert "error" not in reply
        post(address, "/v1/close", [{"session": reply["session"]}])


def test_a_process_that_dies_takes_its_own_sessions_only_and_comes_back(cluster):
    served, address = cluster
    with EnvClient(address) as client:
        sessions = client.open_many(9)
        client.reset_many([(s, 0, "5", None) for s in sessions])
        victim = psutil.Process(served.process.pid).children()[1]
        victim.send_signal(signal.SIGKILL)
        victim.wait(5)
        results = client.step_many([(s, "4") for s in sessions])
        lost = [s.state.name[0] for s, r in zip(sessions, results, strict=True)
                if isinstance(r, EnvironmentLost)]  # fmt: skip
        assert len(lost) == 3 and len(set(lost)) == 1
        deadline = time.monotonic() + 20
        while True:
            fresh = client.open_many(3)
            if {s.state.name[0] for s in fresh} == set("012"):
                break
            assert time.monotonic() < deadline, "the process did not come back"
            time.sleep(0.1)
            client.close_many(fresh)
        results = client.reset_many([(s, 0, "5", None) for s in fresh])
        assert all(r.observation.startswith("Hello") for r in results)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_every_process(cluster, how):
    served, _ = cluster
    children = psutil.Process(served.process.pid).children()
    assert served.stop(how) == 0
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert "Traceback" not in served.errors and "Fatal Python error" not in served.errors


def test_the_processes_end_when_their_supervisor_is_killed(cluster):
    served, _ = cluster
    children = psutil.Process(served.process.pid).children()
    os.kill(served.process.pid, signal.SIGKILL)
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_port_that_another_server_shares_is_refused(cluster, run):
    _, address = cluster
    second = run("worlds:Guess", "--port", address.rpartition(":")[2], "--workers", "2")
    _, errors = second.process.communicate(timeout=20)
    assert second.process.returncode == 1 and "cannot listen" in errors
