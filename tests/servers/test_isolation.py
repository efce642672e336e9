"""Worlds in processes of their own: deadlines, deaths, and who is told what."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import requests

from agentgym_env import EnvClient, EnvironmentFault, EnvironmentLost
from agentgym_env.errors import EpisodeOver


@pytest.fixture
def wild(run):
    """A client of a server whose worlds live in three processes, and six of its sessions."""
    served = run("worlds:Wild", "--port", "0", "--workers", "3")
    with EnvClient(served.address()) as client:
        sessions = client.open_many(6)
        client.reset_many([(s, i, None, None) for i, s in enumerate(sessions)])
        yield served, client, sessions


def step(client, sessions, actions):
    return client.step_many(list(zip(sessions, actions, strict=True)))


def kinds(results):
    return [type(result).__name__ for result in results]


def pids(results):
    return [int(reply.observation.split()[0]) for reply in results]


def test_sessions_are_spread_over_processes_that_are_not_the_servers(wild):
    served, client, sessions = wild
    found = pids(step(client, sessions, ["x"] * 6))
    assert found[:3] == found[3:] and len(set(found)) == 3
    assert served.process.pid not in found and os.getpid() not in found


def test_processes_step_side_by_side(wild):
    _, client, sessions = wild
    began = time.monotonic()
    step(client, sessions[:3], ["wait"] * 3)
    together = time.monotonic() - began
    step(client, sessions[0:6:3], ["wait"] * 2)  # both in the first process
    one_by_one = time.monotonic() - began - together
    assert one_by_one > 0.6 > together > 0.3


def test_a_step_past_its_deadline_costs_its_process_and_nobody_elses(wild):
    _served, client, sessions = wild
    before = pids(step(client, sessions, ["x"] * 6))
    results = step(client, sessions, ["hang", *["x"] * 5])
    assert kinds(results) == [
        "EnvironmentFault", "StepReply", "StepReply", "EnvironmentLost", "StepReply", "StepReply",
    ]  # fmt: skip
    assert results[0].code == "deadline" and "longer than 1 s" in str(results[0])
    assert results[3].code == "unknown_session"
    assert not psutil.pid_exists(before[0])
    page = requests.get(sessions[0].address + "/metrics", timeout=10).text.splitlines()
    assert "agentgym_restarts_total 1" in page
    assert 'agentgym_errors_total{code="deadline"} 1' in page


def test_a_world_that_kills_its_process_is_named_and_another_takes_its_place(wild):
    _, client, sessions = wild
    before = pids(step(client, sessions, ["x"] * 6))
    (failed,) = step(client, sessions[1:2], ["die"])
    assert isinstance(failed, EnvironmentFault) and "exit status 3" in str(failed)
    (over,) = step(client, sessions[1:2], ["x"])
    assert isinstance(over, EpisodeOver)
    (lost,) = client.reset_many([(sessions[1], 0, None, None)])
    assert isinstance(lost, EnvironmentLost)
    fresh = client.open_many(3)
    client.reset_many([(s, 0, None, None) for s in fresh])
    after = pids(step(client, fresh, ["x"] * 3))
    assert len(set(after) - set(before)) == 1


def test_sessions_open_although_a_process_was_killed_while_idle(wild):
    _, client, sessions = wild
    os.kill(pids(step(client, sessions, ["x"] * 6))[0], signal.SIGKILL)
    fresh = client.open_many(3)
    client.reset_many([(session, 0, None, None) for session in fresh])
    assert kinds(step(client, fresh, ["x"] * 3)) == ["StepReply"] * 3
    assert kinds(step(client, sessions, ["x"] * 6)).count("EnvironmentLost") == 2


def test_the_card_and_the_tasks_come_from_a_world_process(wild):
    _, client, _ = wild
    card = client.card()
    assert (card.env, card.instruction, card.splits) == ("worlds:Wild", "Behave.", {"train": 2})
    assert client.tasks("train").tasks == ["a", "b"]


def test_health_answers_while_every_process_is_busy(wild):
    _served, _client, sessions = wild
    address = sessions[0].address
    body = [{"session": s.state.name, "turn": 1, "action": "hang"} for s in sessions[:3]]
    with pytest.raises(requests.Timeout):
        requests.post(address + "/v1/step", json=body, timeout=0.1)
    began = time.monotonic()
    assert requests.get(address + "/health", timeout=5).json()["status"] == "ok"
    assert time.monotonic() - began < 0.9, "it waited for the steps"


@pytest.mark.parametrize("gently", [True, False])
def test_the_processes_end_with_the_server(wild, gently):
    served, client, sessions = wild
    children = set(pids(step(client, sessions, ["x"] * 6)))
    if gently:
        assert served.stop() == 0
    else:
        served.process.kill()
    _gone, alive = psutil.wait_procs(
        [psutil.Process(p) for p in children if psutil.pid_exists(p)], timeout=10
    )
    assert not alive


@pytest.mark.parametrize("road", ["--isolate", "--inline"])
def test_a_graceful_end_finishes_the_step_under_way(run, road):
    served = run("worlds:Wild", "--port", "0", road)
    with EnvClient(served.address()) as client, ThreadPoolExecutor(1) as threads:
        session = client.open()
        session.reset(seed=0)
        under_way = threads.submit(session.step, "wait")  # 0.3 s
        time.sleep(0.1)
        assert not under_way.done()
        assert served.stop() == 0
        assert under_way.result(5).observation.endswith(" 1")
    assert "stopped" in served.errors


def test_what_a_world_prints_is_no_part_of_an_answer(wild):
    served, _, _ = wild
    served.stop()
    assert "noise on stdout" in served.errors


def test_an_isolated_world_that_cannot_be_made_ends_the_server(run):
    served = run("worlds:Unmakeable", "--port", "0", "--isolate", "--workers", "2")
    _, errors = served.process.communicate(timeout=30)
    assert served.process.returncode == 1
    assert "worlds:Unmakeable cannot be made: ValueError: no such luck (" in errors
    assert "world_not_made" in errors and 'raise ValueError("no such luck")' in errors
    assert "Exception in thread" not in errors and "During handling" not in errors
