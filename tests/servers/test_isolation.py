"""Worlds in processes of their own: deadlines, deaths, and who is told what."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import requests

from agentgym_env import EnvClient, EnvironmentFault, EnvironmentLost
from agentgym_env.errors import EpisodeOver
from agentgym_servers import cli
from agentgym_servers.__main__ import main
from agentgym_servers.host.isolation import WorldProcess, world_pool
from agentgym_servers.host.protocols.dispatch import app_of
from agentgym_servers.host.settings import ServeSettings
from hosting import HttpServer
from processes import all_gone, workers_of
from waiting import until

WORKERS = 2


@pytest.fixture(scope="module")
def pool():
    """Worlds in two processes, and a server of this process that serves them."""
    settings = ServeSettings(
        env_id="worlds:Wild", entry_point="worlds:Wild", isolated=True, workers=WORKERS,
        max_sessions=1000,
    )  # fmt: skip
    router = world_pool(settings)
    server = HttpServer(None, app_of(router, settings))
    yield router, server.address
    server.stop()


@pytest.fixture
def wild(pool):
    """A client of the server, and two sessions in each process, those of the first one first."""
    with EnvClient(pool[1]) as client:
        sessions = sorted(client.open_many(2 * WORKERS), key=lambda s: s.state.name)
        client.reset_many([(s, i, None, None) for i, s in enumerate(sessions)])
        yield client, sessions


def step(client, sessions, actions):
    return client.step_many(list(zip(sessions, actions, strict=True)))


def kinds(results):
    return [type(result).__name__ for result in results]


def pids(results):
    return [int(reply.observation.split()[0]) for reply in results]


def metric(address, name):
    page = requests.get(address + "/metrics", timeout=60).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def begun(path, count):
    """Wait until so many processes are in a step `until PATH`."""
    until(lambda: len(list(path.parent.glob(f"{path.name}.begun.*"))) >= count)


def test_sessions_are_spread_over_processes_that_are_not_the_servers(wild):
    client, sessions = wild
    first, again, second, too = pids(step(client, sessions, ["x"] * 4))
    assert first == again != second == too
    assert os.getpid() not in (first, second)


def test_processes_step_side_by_side_and_health_answers_meanwhile(pool, wild, tmp_path):
    client, sessions = wild
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(1) as threads:
        under_way = threads.submit(step, client, sessions[::2], [f"until {gate}"] * 2)
        begun(gate, count=2)
        assert requests.get(pool[1] + "/health", timeout=60).json()["status"] == "ok"
        assert not under_way.done()
        gate.touch()
        assert kinds(under_way.result()) == ["StepReply"] * 2


def test_a_step_past_its_deadline_costs_its_process_and_nobody_elses(pool, wild, monkeypatch):
    router, address = pool
    client, sessions = wild
    before = pids(step(client, sessions, ["x"] * 4))
    counted = ("agentgym_restarts_total", 'agentgym_errors_total{code="deadline"}')
    told = [metric(address, name) for name in counted]
    with monkeypatch.context() as patch:
        patch.setattr(router._partitions[0], "_deadline_s", 0.5)
        (late,) = step(client, sessions[:1], ["hang"])
    assert isinstance(late, EnvironmentFault) and late.code == "deadline"
    assert "longer than 0.5 s" in str(late)
    others = step(client, sessions[1:], ["x"] * 3)
    assert kinds(others) == ["EnvironmentLost", "StepReply", "StepReply"]
    assert others[0].code == "unknown_session"
    assert not psutil.pid_exists(before[0])
    assert [metric(address, name) for name in counted] == [value + 1 for value in told]


def test_a_server_takes_the_deadline_of_its_world_or_of_its_option(ended, monkeypatch):
    served = []
    monkeypatch.setattr(cli, "_run", lambda settings, report: served.append(settings))
    for words in ((), ("--step-timeout", "7")):
        assert ended(main, "worlds:Wild", *words) == (0, "")
    assert [WorldProcess(settings, 0)._deadline_s for settings in served] == [1.0, 7.0]


def test_a_world_that_kills_its_process_is_named_and_another_takes_its_place(wild):
    client, sessions = wild
    before = pids(step(client, sessions, ["x"] * 4))
    (failed,) = step(client, sessions[:1], ["die"])
    assert isinstance(failed, EnvironmentFault) and "exit status 3" in str(failed)
    (over,) = step(client, sessions[:1], ["x"])
    assert isinstance(over, EpisodeOver)
    (lost,) = client.reset_many([(sessions[0], 0, None, None)])
    assert isinstance(lost, EnvironmentLost)
    fresh = client.open_many(WORKERS)
    client.reset_many([(s, 0, None, None) for s in fresh])
    after = pids(step(client, fresh, ["x"] * WORKERS))
    assert len(set(after) - set(before)) == 1


def test_sessions_open_although_a_process_was_killed_while_idle(wild):
    client, sessions = wild
    os.kill(pids(step(client, sessions, ["x"] * 4))[0], signal.SIGKILL)
    fresh = client.open_many(WORKERS)
    client.reset_many([(session, 0, None, None) for session in fresh])
    assert kinds(step(client, fresh, ["x"] * WORKERS)) == ["StepReply"] * WORKERS
    assert kinds(step(client, sessions, ["x"] * 4)).count("EnvironmentLost") == 2


def test_the_card_and_the_tasks_come_from_a_world_process(wild):
    client, _ = wild
    card = client.card()
    assert (card.env, card.instruction, card.splits) == ("worlds:Wild", "Behave.", {"train": 2})
    assert client.tasks("train").tasks == ["a", "b"]


def test_the_processes_end_with_a_server_that_is_killed(run):
    served = run("worlds:Wild", "--port", "0", "--workers", str(WORKERS))
    served.address()
    children = workers_of(served.process)
    assert len(children) == WORKERS
    served.process.kill()
    assert all_gone(children)


@pytest.mark.parametrize("road", ["--isolate", "--inline"])
def test_a_graceful_end_finishes_the_step_under_way(run, road):
    served = run("worlds:Wild", "--port", "0", road, "--workers", "1", "--step-timeout", "120")
    children = workers_of(served.process) if served.address() else []
    with EnvClient(served.address()) as client:
        session = client.open()
        session.reset(seed=0)
        # The step itself stops the server, and ends when that refuses connections, unless the world
        # holds it.
        port = served.address().rpartition(":")[2] if road == "--isolate" else ""
        assert session.step(f"stop {served.process.pid} {port}").observation.endswith(" 1")
    _, errors = served.process.communicate(timeout=60)
    assert served.process.returncode == 0 and "stopped" in errors
    if road == "--isolate":
        assert "noise on stdout" in served.errors + errors, "it is no part of an answer"
    assert len(children) == (road == "--isolate")
    assert all_gone(children)


def test_an_isolated_world_that_cannot_be_made_ends_the_server(run):
    served = run("worlds:Unmakeable", "--port", "0", "--isolate", "--workers", "1")
    _, errors = served.process.communicate(timeout=60)
    assert served.process.returncode == 1
    assert "worlds:Unmakeable cannot be made: ValueError: no such luck (" in errors
    assert "world_not_made" in errors and 'raise ValueError("no such luck")' in errors
    assert "Exception in thread" not in errors and "During handling" not in errors


def test_a_step_that_takes_long_keeps_nobody_from_renewing(pool, tmp_path):
    _, address = pool
    with EnvClient(address) as client:
        sessions = sorted(client.open_many(2 * WORKERS), key=lambda s: s.state.name)
        client.reset_many([(s, 0, None, None) for s in sessions])
        path = tmp_path / "go"
        with ThreadPoolExecutor() as threads:
            # Both sessions of a process, one after the other: each takes less than the limit.
            steps = [threads.submit(sessions[i].step, f"until {path}") for i in (0, 1)]
            until(lambda: list(tmp_path.glob("go.begun.*")), "no step has begun")
            renew = [{"session": s.state.name, "lease_s": 30} for s in sessions]
            told = requests.post(address + "/v1/renew", json=renew, timeout=60)
            is_open = not steps[0].done()
            path.touch()
            assert all(each["renewed"] for each in told.json()) and is_open
            assert len({step.result().observation.split()[0] for step in steps}) == 1


def test_the_end_of_a_session_that_hangs_costs_its_process_alone(tmp_path):
    settings = ServeSettings(
        env_id="worlds:HangsAtItsEnd", entry_point="worlds:HangsAtItsEnd", isolated=True, workers=1,
        step_timeout_s=1.0, session_ttl_s=1.0,
    )  # fmt: skip
    server = HttpServer(None, app_of(world_pool(settings), settings))

    def posted(path, item):
        return requests.post(server.address + path, json=[item], timeout=60).json()[0]

    name = posted("/v1/sessions", {})["session"]
    pid = posted("/v1/reset", {"session": name, "task": "a"})["observation"]
    process = psutil.Process(int(pid))

    def is_replaced() -> bool:
        # Renewals meet the end that hangs, as steps do.
        assert posted("/v1/renew", {"session": name, "lease_s": 30})["renewed"]
        opened = posted("/v1/sessions", {}).get("session")
        started = opened and posted("/v1/reset", {"session": opened, "task": "a"})
        return bool(started) and started.get("observation") not in ("", None, pid)

    until(is_replaced, "no process takes its place")
    assert all_gone([process])
    server.stop()
