"""Sessions end with their client: at its exit, when its objects are collected, and if it is killed.

The programs here are real processes, and the servers real HTTP servers.
"""

import asyncio
import gc
import subprocess
import sys

import pytest
import requests

from agentgym_env import AsyncEnvClient, EnvClient, RemoteEnv, RemoteVectorEnv
from agentgym_env.client import leases
from agentgym_env.wire import CreateRequest, RenewRequest
from hosting import GUESS, Clock, sessions_become
from waiting import until

WAYS = {
    "a vector": "v = gymnasium.make_vec(ID, num_envs=4, server=ADDRESS); v.reset(seed=0)",
    "environments": (
        "e = [gymnasium.make(ID, server=ADDRESS) for _ in range(4)]; [each.reset() for each in e]"
    ),
    "a client": ("from agentgym_env import EnvClient\nc = EnvClient(ADDRESS)\ns = c.open_many(4)"),
    "an asynchronous client": (
        "import asyncio\nfrom agentgym_env import AsyncEnvClient\n"
        "async def main():\n    return await AsyncEnvClient(ADDRESS).open_many(4)\n"
        "s = asyncio.run(main())"
    ),
    "a function": (
        "def play():\n    e = gymnasium.make(ID, server=ADDRESS); e.reset()\nplay(); play()"
    ),
    "sessions that were dropped": (
        "from agentgym_env import EnvClient\nc = EnvClient(ADDRESS)\nc.open_many(4)"
    ),
    "an exception": (
        "v = gymnasium.make_vec(ID, num_envs=4, server=ADDRESS); v.reset(seed=0); 1 / 0"
    ),
}
BEGIN = (
    "import os, sys, gymnasium, agentgym_env\nID, ADDRESS = sys.argv[1:]\n"
    "agentgym_env.register(ID, 'worlds:Guess')\n"
)


def program(code: str, address: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + code, GUESS, address], stderr=subprocess.DEVNULL, **options
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_ends_without_close_leaves_no_session(serve, way):
    address = serve(max_sessions=4).address
    assert program(WAYS[way], address).wait() == (1 if way == "an exception" else 0)
    # They were closed before the program ended: the next one has all four.
    assert sessions_become(address, 0)


def test_what_is_collected_without_close_leaves_no_session(serve):
    address = serve(max_sessions=4).address
    for _ in range(3):
        vector = RemoteVectorEnv(GUESS, 2, address)
        env = RemoteEnv(GUESS, address)
        vector.reset(seed=0), env.reset(seed=0)
        circle = [vector, env]
        circle.append(circle)
        del vector, env, circle
        gc.collect()
        assert sessions_become(address, 0)


def test_sessions_of_a_client_that_is_closed_end_with_their_objects(serve):
    address = serve().address
    with EnvClient(address) as client:
        session = client.open()
    assert sessions_become(address, 1)
    del session
    assert sessions_become(address, 0)


def test_an_abandoned_asynchronous_session_is_closed(serve):
    address = serve().address

    async def abandon():
        client = AsyncEnvClient(address)
        session = await client.open()
        await session.reset(task="5")
        await client.close()

    asyncio.run(abandon())
    assert sessions_become(address, 0)


def test_the_sessions_of_a_killed_client_end_when_their_lease_runs_out(serve):
    clock = Clock()
    server = serve(max_sessions=4, clock=clock)
    table = server.host.table
    code = WAYS["a vector"] + "\nprint('ready', flush=True)\nsys.stdin.read()"
    killed = program(code, server.address, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    killed.stdout.readline()
    leased = lambda: sum(s.lease_s == leases.LEASE_S for s in table._sessions.values())  # noqa: E731
    until(lambda: leased() == 4, "four sessions have no lease")
    killed.kill()
    killed.communicate()
    # Less than a minute, in steps of the server's own looks at its sessions.
    for _ in range(4):
        clock.now += 10.0
        assert table.reap() == 0
    clock.now += 10.0
    assert table.reap() == 4
    assert sessions_become(server.address, 0)


def test_a_client_that_lives_renews_its_leases(serve, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_EVERY_S", 0.05)
    clock = Clock()
    server = serve(clock=clock)
    table = server.host.table
    env = RemoteEnv(GUESS, server.address)
    env.reset(seed=0, options={"task": "5"})
    (session,) = table._sessions.values()
    until(lambda: session.lease_s is not None, "there is no lease")
    for _ in range(12):
        clock.now += 10.0
        table.reap()
        awake = table._awake_s
        until(lambda awake=awake: session.renewed == awake, "the lease is not renewed")
    # Two minutes of silence, in which the client only thought.
    assert env.step("5")[1:3] == (1.0, True)
    env.close()


def test_leases_are_renewed_within_the_servers_limit_of_items(serve, make_host, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_EVERY_S", 0.05)
    clock = Clock()
    server = serve(clock=clock, max_items=2)
    with EnvClient(server.address) as client:
        sessions = [client.open() for _ in range(5)]
        table = server.host.table
        for _ in range(6):
            clock.now += 10.0
            table.reap()
            awake = table._awake_s
            renewed = lambda awake=awake: all(s.renewed == awake for s in table._sessions.values())  # noqa: E731
            until(renewed, "not all leases are renewed")
        assert len(table) == len(sessions) == 5


def test_a_server_that_answers_too_slowly_does_not_keep_a_program(serve):
    # It takes the session and then a byte at a time, for ever.
    code = (
        "import socket, threading, time\n"
        "from agentgym_env.client import leases\nfrom agentgym_env.client.transports import *\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "def drip():\n"
        "    while True:\n"
        "        peer, _ = listener.accept(); peer.sendall(b'HTTP/1.1 200 OK\\r\\n')\n"
        "        threading.Thread(target=trickle, args=[peer], daemon=True).start()\n"
        "def trickle(peer):\n"
        "    while True:\n        peer.sendall(b'X-A: a\\r\\n'); time.sleep(0.1)\n"
        "threading.Thread(target=drip, daemon=True).start()\n"
        "class Owner: pass\nowner = Owner()\n"
        "address = 'http://127.0.0.1:%d' % listener.getsockname()[1]\n"
        "held = leases.lease(owner, 'name', HttpTransport(address))\n"
    )
    assert program(code, "unused").wait(60) == 0


def test_the_thread_that_renews_ends_with_the_last_session(serve, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_EVERY_S", 0.05)
    server = serve()
    env = RemoteEnv(GUESS, server.address)
    env.reset(seed=0)
    assert (server.address, None) in leases._keepers
    keeper = leases._keepers[server.address, None]
    env.close()
    until(lambda: not keeper.is_alive(), "the thread goes on")
    assert (server.address, None) not in leases._keepers
    # A later session has another.
    env = RemoteEnv(GUESS, server.address)
    env.reset(seed=0)
    assert leases._keepers[server.address, None] is not keeper
    env.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
def test_a_forked_process_leaves_its_parents_sessions_alone(serve):
    server = serve()
    code = (
        "e = gymnasium.make(ID, server=ADDRESS); e.reset(options={'task': '5'})\n"
        "import gc, subprocess\n"
        "child = os.fork()\n"
        "if not child:\n    del e; gc.collect(); sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert e.step('5')[1] == 1.0"
    )
    assert program(code, server.address).wait() == 0
    assert sessions_become(server.address, 0)


def test_leases_are_renewed_by_any_client_of_the_wire(serve):
    clock = Clock()
    server = serve(clock=clock)
    (opened,) = requests.post(server.address + "/v1/sessions", json=[{}], timeout=60).json()
    renew = [{"session": name, "lease_s": 25} for name in (opened["session"], "nobody")]
    told = requests.post(server.address + "/v1/renew", json=renew, timeout=60)
    assert (told.status_code, [each["renewed"] for each in told.json()]) == (200, [True, False])
    for wrong in (0, -1, 1e9, "long", None):
        body = [{"session": opened["session"], "lease_s": wrong}]
        assert requests.post(server.address + "/v1/renew", json=body, timeout=60).status_code == 400
    for _ in range(2):
        clock.now += 10.0
        assert server.host.table.reap() == 0
    clock.now += 10.0
    assert server.host.table.reap() == 1


def test_a_server_that_was_blocked_ends_no_lease_that_could_not_be_renewed(make_host):
    clock = Clock()
    table = make_host(clock=clock).table
    opened = table.create([CreateRequest()])[0].session
    table.renew([RenewRequest(opened, 40.0)])
    clock.now += 3000.0  # a step of a world took so long, and the renewals wait
    assert table.reap() == 0
    table.renew([RenewRequest(opened, 40.0)])
    for _ in range(3):
        clock.now += 10.0
        assert table.reap() == 0
