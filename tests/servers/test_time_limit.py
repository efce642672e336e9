"""An inline world that hangs: its call is logged and ended, and the other sessions go on."""

from __future__ import annotations

import threading
import time

import pytest
from msgspec import UNSET

from agentgym_env import EnvClient, EnvironmentFault
from agentgym_env.wire import CreateRequest, ResetRequest, StepRequest
from agentgym_servers.host import time_limit
from agentgym_servers.host.sessions import SessionTable
from agentgym_servers.host.time_limit import TimeLimit
from waiting import until
from worlds import Stalls


@pytest.fixture
def started():
    """Starts limits in this thread, and stops them in the end."""
    limits: list[TimeLimit] = []

    def start(limit: TimeLimit) -> TimeLimit:
        limits.append(limit)
        limit.start()
        return limit

    yield start
    for limit in limits:
        limit.stop()


def codes(replies):
    return [None if reply.error is UNSET else reply.error.code for reply in replies]


@pytest.mark.parametrize("task", ["sleeps", "spins", "swallows"])
def test_a_step_that_hangs_is_ended_and_those_of_the_same_batch_are_answered(started, task):
    table = SessionTable(Stalls, env_id="worlds:Stalls", step_timeout_s=1.0)
    started(table.time_limit)
    names = [reply.session for reply in table.create([CreateRequest()] * 3)]
    tasks = ["fine", task, "good"]
    table.reset([ResetRequest(n, 0, t) for n, t in zip(names, tasks, strict=True)])
    replies = table.step([StepRequest(name, 1, "x") for name in names])
    assert codes(replies) == [None, "deadline", None]
    assert f"turn 1 of task '{task}' took longer than 1 s" in replies[1].error.message
    assert "step_timeout_s" in replies[1].error.message
    (again,) = table.step([StepRequest(names[1], 2, "x")])
    assert codes([again]) == ["episode_over"]
    table.shutdown()


def test_a_reset_that_hangs_is_ended_and_the_next_ones_are_answered(started):
    table = SessionTable(Stalls, env_id="worlds:Stalls", step_timeout_s=1.0)
    started(table.time_limit)
    names = [reply.session for reply in table.create([CreateRequest()] * 2)]
    replies = table.reset([ResetRequest(names[0], 0, "starts"), ResetRequest(names[1], 0, "fine")])
    assert codes(replies) == ["deadline", None]
    assert "the reset of task 'starts' took longer than 1 s" in replies[0].error.message
    table.shutdown()


def test_the_option_is_the_limit_of_an_inline_server(run):
    served = run("worlds:Stalls", "--port", "0", "--step-timeout", "3")
    with EnvClient(served.address()) as client:
        sessions = client.open_many(2)
        client.reset_many([(sessions[0], 0, "sleeps", None), (sessions[1], 0, "fine", None)])
        late, fine = client.step_many([(session, "x") for session in sessions])
        assert isinstance(late, EnvironmentFault) and "took longer than 3 s" in str(late)
        assert fine.observation == "Done."
    assert served.stop() == 0
    assert "worlds.py" in served.errors, "where it was is logged"


def test_a_call_that_takes_long_is_logged_once_with_its_task_and_turn(started, caplog):
    limit = started(TimeLimit(600.0, report_after_s=0.1))

    def waits():
        until(lambda: caplog.messages, "it was not logged")
        threading.Event().wait(0.2)  # it is looked at eight times more
        return "done"

    assert limit.call("turn", "7", 3, waits) == "done"
    (line,) = caplog.messages
    assert line.startswith("environment_waits call=\"turn 3 of task '7'\" seconds=")
    assert line.endswith("limit_s=600.0")


def test_each_call_that_was_ended_halves_the_limit_until_none_was_for_a_while(started, monkeypatch):
    monkeypatch.setattr(time_limit, "_LEAST_S", 0.05)
    monkeypatch.setattr(time_limit, "_REPEAT_S", 0.1)
    limit = started(TimeLimit(0.4))
    ended = []
    for _ in range(5):
        with pytest.raises(EnvironmentFault, match="took longer than") as caught:
            limit.call("turn", None, 1, lambda: time.sleep(600))
        ended.append(str(caught.value).partition(" took longer than ")[2].partition(" s")[0])
    assert ended == ["0.4", "0.2", "0.1", "0.1", "0.1"]
    assert "since others before it were ended" in str(caught.value)
    until(lambda: limit.current_limit_s() == 0.4)


def test_the_limit_leaves_room_for_twice_the_longest_call_that_returned(
    started, caplog, monkeypatch
):
    monkeypatch.setattr(time_limit, "_LEAST_S", 0.01)
    limit = started(TimeLimit(60.0, report_after_s=0.4))
    limit.call("turn", None, 1, lambda: until(lambda: caplog.messages))
    until(lambda: limit._longest_s)
    limit._ended, limit._last_end = 20, time.monotonic()
    assert limit.current_limit_s() == 15.0, "a quarter"
    limit.limit_s = 4 * limit._longest_s
    assert limit.current_limit_s() == 2 * limit._longest_s >= 0.4
