"""`--workers N`: killed processes are replaced, and a stop prints no error."""

from __future__ import annotations

import asyncio
import signal
import subprocess

import pytest

from agentgym_env import EnvClient, EnvironmentLost
from agentgym_env.wire import CloseReply, CreateReply, CreateRequest, SessionRequest, WireError
from agentgym_servers.host.channel import FIGURES, Answer, Channel, pack_frame, read_frame
from agentgym_servers.host.cluster import _Peer
from agentgym_servers.host.codec import Codec
from agentgym_servers.host.metrics import Figures
from agentgym_servers.host.router import Router
from agentgym_servers.host.sessions import SessionTable
from agentgym_servers.host.supervisor import MAX_FAILED_STARTS
from hosting import Served
from processes import all_gone, workers_of
from waiting import until
from worlds import Guess

WORKERS = 3
BREAKABLE = '''
import os
from pathlib import Path

from agentgym_env import TaskSet, TextEnv


class Breakable(TextEnv):
    """Ends its process where a file `broken` is beside it."""

    instruction = "Wait."
    tasks = TaskSet({"train": ["a"]})

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        if Path(__file__).with_name("broken").exists():
            os._exit(3)

    def _reset(self, task):
        return "What now?"

    def _step(self, action):
        return "Nothing.", 0.0, False
'''

WITHOUT_STDIN = """
import os
import sys

os.close(0)
os.execv(sys.executable, [sys.executable, "-m", "agentgym_servers", *sys.argv[1:]])
"""


@pytest.fixture
def start(worlds_folder):
    """Runs the command with a standard input of one's choice."""
    started = []

    def run(*arguments, folder=worlds_folder, **settings):
        started.append(Served(folder, *arguments, **settings))
        return started[-1]

    yield run
    for served in started:
        served.process.kill()
        served.process.communicate()


def children_of(served):
    return workers_of(served.process)


def next_child(served, seen):
    """The process that was started since `seen` was filled, which it joins."""

    def new():
        assert served.process.poll() is None, "the server has ended"
        return next((child for child in children_of(served) if child.pid not in seen), None)

    child = until(new, "no process was started")
    seen.add(child.pid)
    return child


def kill(process):
    process.kill()
    process.wait(60)


def open_on_all(client):
    """Sessions on every worker, as soon as all of them serve."""

    def on_all():
        sessions = client.open_many(WORKERS)
        if len({session.state.name[0] for session in sessions}) == WORKERS:
            return sessions
        client.close_many(sessions)

    sessions = until(on_all, "not every worker serves")
    client.reset_many([(session, 0, "5", None) for session in sessions])
    return sessions


def step_all(client, sessions):
    """Guess wrongly in each session; the sessions that go on, and those that are lost."""
    going, lost = [], []
    results = client.step_many([(session, "4") for session in sessions])
    for session, result in zip(sessions, results, strict=True):
        if isinstance(result, EnvironmentLost):
            lost.append(session)
        else:
            assert (result.reward, result.observation) == (0.0, "'4' is wrong.")
            going.append(session)
    return going, lost


@pytest.mark.slow
def test_a_worker_is_replaced_however_often_it_and_its_replacements_are_killed(start):
    served = start("worlds:Guess", "--port", "0", "--workers", str(WORKERS))
    with EnvClient(served.address()) as client:
        workers = children_of(served)
        seen = {worker.pid for worker in workers}
        sessions = open_on_all(client)
        # Those that were serving: the first, and the one that replaced it.
        kill(workers[1])
        others, lost = step_all(client, sessions)
        assert (len(others), len(lost)) == (WORKERS - 1, 1)
        replacement = next_child(served, seen)
        fresh = open_on_all(client)
        kill(replacement)
        others, lost = step_all(client, [*others, *fresh])
        assert (len(others), len(lost)) == (2 * (WORKERS - 1), 1)
        # And those that had not come to serve, more often than a failing worker may end.
        for _ in range(MAX_FAILED_STARTS):
            kill(next_child(served, seen))
            assert step_all(client, others) == (others, [])
        next_child(served, seen)
        others += open_on_all(client)
        assert step_all(client, others) == (others, [])
        results = client.step_many([(session, "5") for session in others])
        assert [result.reward for result in results] == [1.0] * len(others)
    assert served.stop() == 0
    assert served.errors.count("worker_lost worker=") == 2 + MAX_FAILED_STARTS
    assert "Traceback" not in served.errors and "Fatal Python error" not in served.errors


@pytest.mark.slow
def test_a_worker_that_cannot_start_again_stops_the_server_with_one_line(start, tmp_path):
    (tmp_path / "breakable.py").write_text(BREAKABLE)
    served = start(
        "breakable:Breakable", "--port", "0", "--workers", "2", folder=tmp_path,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    served.address()
    workers = children_of(served)
    (tmp_path / "broken").touch()
    kill(workers[0])
    _, errors = served.process.communicate(timeout=60)
    assert served.process.returncode == 1
    assert errors.count("worker_lost worker=") == 1 + MAX_FAILED_STARTS
    assert errors.splitlines()[-1].endswith(
        f"of breakable:Breakable ended {MAX_FAILED_STARTS} times in a row before it was ready "
        "(exit status 3); see the lines above"
    )
    assert "Traceback" not in errors and "Fatal Python error" not in errors
    assert all_gone(workers)


@pytest.mark.parametrize(
    ("how", "stdin"),
    [
        (signal.SIGINT, "closed"),
        pytest.param(signal.SIGTERM, "null", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "pipe", marks=pytest.mark.slow),
    ],
)
def test_a_stop_ends_every_process_without_an_error_whatever_the_standard_input_is(
    start, tmp_path, how, stdin
):
    (tmp_path / "breakable.py").write_text(BREAKABLE)
    (tmp_path / "without_stdin.py").write_text(WITHOUT_STDIN)
    served = start(
        "breakable:Breakable", "--port", "0", "--workers", "2", folder=tmp_path,
        stdin=subprocess.DEVNULL if stdin == "null" else subprocess.PIPE,
        module="without_stdin" if stdin == "closed" else "agentgym_servers",
    )  # fmt: skip
    served.address()
    workers = children_of(served)
    assert served.stop(how) == 0
    assert all_gone(workers)
    assert "Fatal Python error" not in served.errors and "Traceback" not in served.errors
    assert served.errors.count("serving: stopped") == 2


def test_a_stop_while_the_workers_start_ends_them(start):
    served = start("worlds:Guess", "--port", "0", "--workers", "2", stdin=subprocess.DEVNULL)
    seen = set()
    workers = [next_child(served, seen) for _ in range(2)]
    assert served.stop() == 0
    assert all_gone(workers)
    assert "Fatal Python error" not in served.errors and "Traceback" not in served.errors


async def test_whoever_waits_for_an_answer_is_told_when_the_channel_is_closed(tmp_path):
    asked = asyncio.Event()

    async def never_answer(reader, writer):
        for _ in range(2):
            await read_frame(reader)
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(never_answer, tmp_path / "door"):
        channel = Channel(*await asyncio.open_unix_connection(tmp_path / "door"))
        waiting = [asyncio.create_task(channel.ask(FIGURES, b"")) for _ in range(2)]
        await asked.wait()
        await channel.close()
        for task in waiting:
            with pytest.raises(ConnectionError):
                await task


class Part:
    """A process's sessions: it takes as many as it has `room` for, a moment later."""

    def __init__(self, reply, room=10**6, full="too_many_sessions"):
        self.reply = reply
        self.room = room
        self.refusal = CreateReply(error=WireError(full, "no room"))
        self.taken = 0
        self.asked = []
        self.closed = []

    async def ask(self, path, requests):
        await asyncio.sleep(0)
        if path == "/v1/close":
            self.closed += [request.session for request in requests]
            return [CloseReply(r.session, r.session == self.reply.session) for r in requests]
        self.asked.append(len(requests))
        self.taken += len(requests)
        replies = [self.reply if i < self.room else self.refusal for i in range(len(requests))]
        self.room = max(0, self.room - len(requests))
        return replies

    async def figures(self):
        return Figures()

    async def start(self): ...

    async def stop(self): ...


def router_of(parts):
    return Router(Codec(SessionTable(Guess, env_id="worlds:Guess")), parts, count_codec=False)


async def test_calls_at_the_same_time_all_find_the_process_that_takes_sessions():
    gone = CreateReply(error=WireError("shutting_down", "gone"))
    parts = [Part(gone), Part(CreateReply("1.x")), Part(gone)]
    router = router_of(parts)
    calls = [router.ask("/v1/sessions", [CreateRequest()]) for _ in range(30)]
    replies = await asyncio.gather(*calls)
    assert [reply.session for (reply,) in replies] == ["1.x"] * 30
    assert parts[1].taken == 30


async def test_what_one_process_refuses_is_spread_over_those_that_did_not():
    parts = [Part(CreateReply(f"{i}.x"), room) for i, room in enumerate([2, 20, 0, 20])]
    replies = await router_of(parts).ask("/v1/sessions", [CreateRequest()] * 24)
    assert [r.session[:1] for r in replies].count("1") == 6 + 5
    assert [part.asked for part in parts] == [[6], [6, 5], [6], [6, 5]]
    # And those that have room left take all of it.
    replies = await router_of(parts).ask("/v1/sessions", [CreateRequest()] * 19)
    assert [r.session[:1] for r in replies].count("") == 1


async def test_a_session_that_a_restarting_process_may_take_is_not_refused_for_good():
    full, gone = Part(CreateReply("0.x"), 1), Part(CreateReply("1.x"), 0, "shutting_down")
    for parts in ([full, gone], [gone, full]):
        full.room = 1
        replies = await router_of(parts).ask("/v1/sessions", [CreateRequest()] * 4)
        codes = [r.error.code for r in replies if not r.session]
        assert codes == ["shutting_down"] * 3


async def test_a_key_is_looked_for_in_every_process():
    parts = [Part(CreateReply("a" * 16)), Part(CreateReply("b" * 16))]
    keys = [SessionRequest("b" * 16), SessionRequest("c" * 16)]
    replies = await router_of(parts).ask("/v1/close", keys)
    assert replies == [CloseReply("b" * 16, True), CloseReply("c" * 16, False)]
    assert parts[0].closed == parts[1].closed == ["b" * 16, "c" * 16]


async def test_the_process_that_replaces_a_peer_is_reached_by_the_first_call(tmp_path):
    async def answer(reader, writer):
        await read_frame(reader)
        writer.write(pack_frame(Answer(1, b'[{"session":"1.x"}]')))
        await writer.drain()
        await ended.wait()
        writer.close()

    peer = _Peer(tmp_path, 1)
    for _ in range(2):
        ended = asyncio.Event()
        async with await asyncio.start_unix_server(answer, tmp_path / "1.sock"):
            assert await peer.ask("/v1/sessions", [CreateRequest()]) == [CreateReply("1.x")]
            ended.set()
            while not peer._channel.has_ended:
                await asyncio.sleep(0.001)
        (tmp_path / "1.sock").unlink(missing_ok=True)
    await peer.stop()
