"""Processes of a server that hang, die or fork: they are replaced, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from agentgym_env import EnvClient, EnvironmentFault, EnvironmentLost
from processes import all_gone, workers_of
from waiting import port_is_free, until

pytestmark = pytest.mark.slow
ENV_ID = "rogue:Rogue"


def report(line: str) -> None:
    sys.stdout.write(line + "\n")


def session_in_each(client: EnvClient, count: int) -> dict[int, object]:
    """A session in each process of a server, by the process's number; opened while they start."""
    found: dict[int, object] = {}

    def every() -> bool:
        try:
            sessions = client.open_many(count)
        except EnvironmentLost:  # nobody listens, until one has started
            return False
        for session in sessions:
            pid = int(session.reset(seed=0).observation)
            if found.setdefault(pid, session) is not session:
                session.close()
        return len(found) >= count

    until(every, f"not {count} processes serve")
    return found


def seconds_until_replaced(client: EnvClient, lost: int, count: int, began: float) -> float:
    """Seconds from `began` until so many processes serve, without `lost`."""
    until(lambda: lost not in session_in_each(client, count), "it was not replaced")
    return time.monotonic() - began


@pytest.mark.parametrize("how", ["stop", "hold"])
def test_a_worker_that_gives_no_sign_of_life_is_replaced(run, how):
    served = run(ENV_ID, "--port", "0", "--workers", "2")
    with EnvClient(served.address(), timeout_s=60) as client, ThreadPoolExecutor(1) as threads:
        sessions = session_in_each(client, 2)
        victim, other = sessions
        began = time.monotonic()
        if how == "stop":
            os.kill(victim, signal.SIGSTOP)
        else:
            harm = threads.submit(sessions[victim].step, "hold")
        until(lambda: not psutil.pid_exists(victim), "it was not ended")
        ended_s = time.monotonic() - began
        if how == "hold":
            assert isinstance(harm.exception(60), EnvironmentLost)
        replaced_s = seconds_until_replaced(client, victim, 2, began)
        assert sessions[other].step("x").observation == str(other)
        (lost,) = client.step_many([(sessions[victim], "x")])
        assert isinstance(lost, EnvironmentLost)
    assert served.stop() == 0
    assert "worker_hangs worker=" in served.errors
    report(f"a worker ({how}): ended after {ended_s:.1f} s, replaced after {replaced_s:.1f} s")


def test_a_world_that_swallows_the_end_of_its_time_costs_its_worker(run):
    served = run(ENV_ID, "--port", "0", "--workers", "2", "--step-timeout", "1")
    with EnvClient(served.address(), timeout_s=60) as client, ThreadPoolExecutor(1) as threads:
        sessions = session_in_each(client, 2)
        victim, other = sessions
        harm = threads.submit(sessions[victim].step, "swallow")
        assert isinstance(harm.exception(120), EnvironmentLost)
        assert victim not in session_in_each(client, 2)
        assert sessions[other].step("x").observation == str(other)
    assert served.stop() == 0
    assert served.errors.count("worker_hangs worker=") == 1


def test_a_step_that_takes_its_time_is_no_hang(run):
    served = run(ENV_ID, "--port", "0", "--workers", "2")
    with EnvClient(served.address(), timeout_s=60) as client:
        sessions = session_in_each(client, 2)
        victim = next(iter(sessions))
        assert sessions[victim].step("sleep 15").observation == str(victim)
    assert served.stop() == 0
    assert "worker_hangs" not in served.errors


@pytest.mark.parametrize("road", ["--inline", "--isolate"])
@pytest.mark.parametrize("harm", ["stop", "hold"])
def test_a_process_that_hangs_does_not_outlive_its_server(run, road, harm):
    served = run(ENV_ID, "--port", "0", "--workers", "2", road)
    with EnvClient(served.address()) as client, ThreadPoolExecutor(1) as threads:
        sessions = session_in_each(client, 2)
        workers = workers_of(served.process)
        victim = next(iter(sessions))
        if harm == "stop":
            os.kill(victim, signal.SIGSTOP)
        else:
            threads.submit(sessions[victim].step, "hold")
            busy = psutil.Process(victim)
            until(lambda: busy.cpu_percent(0.3) > 20, "it does not work")
        served.process.kill()
        assert all_gone(workers)
    assert port_is_free(served.address())
    report(f"kill -9 of a server ({road}) with a worker that hangs ({harm}): nothing is left")


@pytest.mark.parametrize("road", ["--inline", "--isolate"])
def test_children_that_a_world_forks_end_with_its_process(run, road):
    served = run(ENV_ID, "--port", "0", "--workers", "2", road)
    with EnvClient(served.address()) as client:
        sessions = session_in_each(client, 2)
        for pid, session in sessions.items():
            children = [
                psutil.Process(int(session.step(action).observation))
                for action in ("fork", "spawn")
            ]
            began = time.monotonic()
            if road == "--inline":
                os.kill(pid, signal.SIGKILL)
                (end,) = client.step_many([(session, "x")])
                assert isinstance(end, EnvironmentLost)
            else:
                (end,) = client.step_many([(session, "die")])
                assert isinstance(end, EnvironmentFault) and "exit status 3" in str(end)
            told_s = time.monotonic() - began
            assert all_gone(children)
        children = [
            psutil.Process(int(session.step("fork").observation))
            for session in session_in_each(client, 2).values()
        ]
    assert served.stop() == 0
    assert all_gone(children)
    assert port_is_free(served.address())
    report(f"a world's forks ({road}): gone with its process, whose end was told in {told_s:.1f} s")


def test_an_isolated_world_with_a_process_of_its_own_takes_its_own_session_only(run):
    count = 3
    served = run(
        ENV_ID, "--port", "0", "--isolate", "--workers", str(count), "--max-sessions", str(count),
        "--step-timeout", "5",
    )  # fmt: skip
    with EnvClient(served.address(), timeout_s=60) as client, ThreadPoolExecutor(1) as threads:
        sessions = session_in_each(client, count)
        for harm in ("sleep 60", "hold", "die"):
            victim, *others = sessions
            ending = threads.submit(sessions.pop(victim).step, harm)
            slowest = 0.0
            while not ending.done():
                for other in others:
                    began = time.monotonic()
                    assert sessions[other].step("x").observation == str(other)
                    slowest = max(slowest, time.monotonic() - began)
            assert isinstance(ending.exception(), EnvironmentFault)
            fresh = client.open()
            sessions[int(fresh.reset(seed=0).observation)] = fresh
            assert len(sessions) == count
            report(f"{harm!r} in its own process: others waited {slowest:.2f} s at most")
    assert served.stop() == 0


def test_a_fork_of_a_world_does_not_keep_the_port_of_a_server(run):
    served = run(ENV_ID, "--port", "0")
    with EnvClient(served.address()) as client:
        session = client.open()
        session.reset(seed=0)
        child = psutil.Process(int(session.step("fork").observation))
        session.close()
    served.process.terminate()
    assert served.process.wait(60) == 0
    assert child.is_running() and port_is_free(served.address())
    child.kill()


def test_a_server_that_was_stopped_itself_keeps_its_workers(run):
    served = run(ENV_ID, "--port", "0", "--workers", "2")
    with EnvClient(served.address()) as client:
        sessions = session_in_each(client, 2)
        served.process.send_signal(signal.SIGSTOP)
        # What counts is the server's own clock, so the time must pass.
        began = time.monotonic()
        while time.monotonic() - began < 8:
            assert all(s.step("x").observation == str(pid) for pid, s in sessions.items())
        served.process.send_signal(signal.SIGCONT)
        assert all(s.step("x").observation == str(pid) for pid, s in sessions.items())
    assert served.stop() == 0
    assert "worker_hangs" not in served.errors
