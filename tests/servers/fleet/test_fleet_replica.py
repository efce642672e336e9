"""A replica keeps a real server running, without Ray."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil
import pytest
import requests

from agentgym_env.client.sync import EnvClient
from agentgym_servers.fleet import replica as module
from agentgym_servers.fleet.replica import Replica
from agentgym_servers.fleet.spec import ServerGroup
from processes import all_gone
from waiting import until

Start = Callable[..., Replica]


@pytest.fixture
def start() -> Iterator[Start]:
    begun: list[Replica] = []

    def one(**values: Any) -> Replica:
        group = ServerGroup(**({"env": "agentgym/TextCraft-v0"} | values))
        begun.append(Replica("w", msgspec.json.encode(group), "127.0.0.1", "secret"))
        return begun[-1]

    yield one
    for replica in begun:
        replica.stop()


def is_ready(replica: Replica) -> Callable[[], bool]:
    return lambda: replica.report().state == "ready"


def server_of(replica: Replica) -> psutil.Process | None:
    port = int(replica.address.rpartition(":")[2])
    for child in psutil.Process().children(recursive=True):
        try:
            listening = [c for c in child.net_connections() if c.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue  # it has ended meanwhile
        if any(c.laddr.port == port for c in listening):
            return child
    return None


def test_it_serves_those_who_have_the_token_and_is_restarted_at_its_address(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END_TIMEOUT_S", 0.2)  # what hangs does not end politely
    replica = start(options={"max_sessions": 7}, unhealthy_s=600.0)
    until(is_ready(replica))
    address = replica.address
    assert requests.get(f"{address}/v1/env", timeout=60).status_code == 401
    with EnvClient(replica.address, token="secret") as client:
        sessions = client.open_many(3)
        assert until(lambda: replica.report().load == 3)
        assert replica.report().places == 7
        client.close_many(sessions)
    assert until(lambda: replica.report().load == 0)
    for how in (signal.SIGKILL, signal.SIGSTOP):
        restarts = replica.report().restarts
        until(lambda: server_of(replica)).send_signal(how)
        if how == signal.SIGSTOP:
            # Only for this server, which hangs; a busy machine may hold up the others for a second.
            msgspec.structs.force_setattr(replica._group, "unhealthy_s", 1.0)
        until(lambda n=restarts: replica.report().restarts > n)
        msgspec.structs.force_setattr(replica._group, "unhealthy_s", 600.0)
        until(is_ready(replica))
        assert replica.address == address


def test_a_server_that_cannot_start_says_why(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY_FAILURES", 1)
    replica = start(env="agentgym/None-v0")
    report = until(lambda: r if (r := replica.report()).state == "failed" else None)
    assert "agentgym/None-v0" in report.error
    assert "exited with status 2" in report.error


def test_options_that_the_fleet_sets_are_rejected(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MANY_FAILURES", 1)
    replica = start(options={"port": 1})
    report = until(lambda: r if (r := replica.report()).state == "failed" else None)
    assert "the fleet sets port itself" in report.error


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_no_process_outlives_a_replica_that_was_killed(workers: int) -> None:
    """The actor's process may be killed at any time; its servers must follow it."""
    group = msgspec.json.encode(
        ServerGroup(env="agentgym/TextCraft-v0", options={"workers": workers})
    )
    code = (
        "import sys, time\n"
        "from agentgym_servers.fleet.replica import Replica\n"
        f"replica = Replica('w', {group!r}, '127.0.0.1', 'secret')\n"
        "while replica.report().state != 'ready': time.sleep(0.05)\n"
        "print('ready', flush=True); time.sleep(600)\n"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        children = psutil.Process(owner.pid).children(recursive=True)
        assert len(children) >= workers
        owner.kill()
    assert all_gone(children)
