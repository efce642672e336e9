"""`--workers N` for worlds that step inline: any process can be asked for any session."""

from __future__ import annotations

import os
import signal

import pytest
import requests

from agentgym_env import EnvClient, EnvironmentLost
from hosting import Served
from processes import all_gone, workers_of
from waiting import until

MOST = 20
"""Sessions of the server."""


@pytest.fixture(scope="module")
def cluster(worlds_folder):
    """A server of three processes and its address; a test closes what it opens."""
    words = ("--port", "0", "--workers", "3", "--max-sessions", str(MOST))
    served = Served(worlds_folder, "worlds:Guess", *words)
    yield served, served.address()
    served.process.kill()
    served.process.communicate()


def post(address, path, items):
    # A connection of its own: the kernel may give it to any process.
    return requests.post(address + path, json=items, timeout=60, headers={"Connection": "close"})


def metric(address, name):
    page = requests.get(address + "/metrics", timeout=60, headers={"Connection": "close"}).text
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(name + " "))


def test_any_process_answers_for_any_session(cluster):
    _, address = cluster
    steps = metric(address, "agentgym_steps_total")
    names = [r["session"] for r in post(address, "/v1/sessions", [{}] * 9).json()]
    assert {name[0] for name in names} == set("012")
    resets = [{"session": name, "task": "5", "seed": 0} for name in names]
    assert post(address, "/v1/reset", resets).ok
    for turn in range(1, 13):
        items = [{"session": name, "turn": turn, "action": "4"} for name in names]
        replies = post(address, "/v1/step", items).json()
        assert [r["session"] for r in replies] == names
        assert all("error" not in r and r["info"]["turn"] == turn for r in replies)
    assert metric(address, "agentgym_steps_total") == steps + 9 * 12
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
    replies = post(address, "/v1/sessions", [{}] * (MOST + 1)).json()
    assert [r.get("error", {}).get("code") for r in replies].count("too_many_sessions") == 1
    one, *others = [r["session"] for r in replies if "error" not in r]
    post(address, "/v1/close", [{"session": one}])
    for _ in range(3):  # whichever process is asked, the one with room is found
        (reply,) = post(address, "/v1/sessions", [{}]).json()
        assert "error" not in reply
        post(address, "/v1/close", [{"session": reply["session"]}])
    post(address, "/v1/close", [{"session": name} for name in others])


def kill_one(served):
    victim = workers_of(served.process)[1]
    victim.kill()
    victim.wait(60)


def test_a_process_that_dies_takes_its_own_sessions_only_and_comes_back(cluster):
    served, address = cluster
    with EnvClient(address) as client:
        sessions = client.open_many(9)
        client.reset_many([(s, 0, "5", None) for s in sessions])
        kill_one(served)
        results = client.step_many([(s, "4") for s in sessions])
        lost = [s for s, r in zip(sessions, results, strict=True) if isinstance(r, EnvironmentLost)]
        assert len(lost) == 3 and len({s.state.name[0] for s in lost}) == 1

        def on_all():
            fresh = client.open_many(3)
            if {s.state.name[0] for s in fresh} == set("012"):
                return fresh
            client.close_many(fresh)

        fresh = until(on_all, "the process did not come back")
        results = client.reset_many([(s, 0, "5", None) for s in fresh])
        assert all(r.observation.startswith("Hello") for r in results)
        client.close_many([*(s for s in sessions if s not in lost), *fresh])


def test_sessions_wait_for_the_worker_that_has_room_for_them(cluster):
    served, address = cluster
    with EnvClient(address) as client:
        client.close_many(client.open_many(MOST))
        kill_one(served)
        sessions = client.open_many(MOST)
        taken = sorted(session.state.name[0] for session in sessions)
        assert taken == list("0" * 7 + "1" * 7 + "2" * 6)
        client.close_many(sessions)


def counters(address):
    """The counters of the whole server, from whichever process answers."""
    page = requests.get(address + "/metrics", timeout=60, headers={"Connection": "close"}).text
    rows = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows if name != "agentgym_sessions"}


def test_counters_never_fall_when_a_worker_is_killed(cluster):
    served, address = cluster
    with EnvClient(address) as client:
        before = counters(address)
        sessions = client.open_many(9)
        client.reset_many([(s, 0, "5", None) for s in sessions])
        client.step_many([(s, "4") for s in sessions])
        told = counters(address)
        steps, restarts = "agentgym_steps_total", "agentgym_restarts_total"
        assert told[steps] == before.get(steps, 0) + 9
        kill_one(served)
        while told[restarts] == before[restarts]:  # while it is away, and when it is back
            now = counters(address)
            assert all(now[name] >= value for name, value in told.items()), (told, now)
            told = now
        assert told[steps] == before.get(steps, 0) + 9
        lost = client.step_many([(s, "4") for s in sessions])
        going = [s for s, r in zip(sessions, lost, strict=True) if not isinstance(r, Exception)]
        assert len(going) == 6
        client.close_many(going)


def test_the_processes_end_when_their_supervisor_is_killed(run):
    served = run("worlds:Guess", "--port", "0", "--workers", "2")
    served.address()
    children = workers_of(served.process)
    os.kill(served.process.pid, signal.SIGKILL)
    assert all_gone(children)


def test_a_port_that_another_server_shares_is_refused(cluster, run):
    _, address = cluster
    second = run("worlds:Guess", "--port", address.rpartition(":")[2], "--workers", "2")
    _, errors = second.process.communicate(timeout=60)
    assert second.process.returncode == 1 and "cannot listen" in errors
