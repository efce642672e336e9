"""`--workers N`: killed processes are replaced, and a stop prints no error."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time

import psutil
import pytest

from agentgym_env import EnvClient, EnvironmentLost
from agentgym_env.wire import CreateReply, CreateRequest, WireError
from agentgym_servers.host.channel import FIGURES, Channel, read_frame
from agentgym_servers.host.codec import Codec
from agentgym_servers.host.metrics import Figures
from agentgym_servers.host.router import Router
from agentgym_servers.host.sessions import SessionTable
from agentgym_servers.host.supervisor import MAX_FAILED_STARTS
from hosting import Served
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
    return psutil.Process(served.process.pid).children()


def next_child(served, seen, timeout_s=20):
    """The process that was started since `seen` was filled, which it joins."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for child in children_of(served):
            if child.pid not in seen:
                seen.add(child.pid)
                return child
        assert served.process.poll() is None, "the server has ended"
        time.sleep(0.01)
    raise AssertionError("no process was started")


def kill(process):
    process.kill()
    process.wait(5)


def open_on_all(client, timeout_s=20):
    """Sessions on every worker, as soon as all of them serve."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        sessions = client.open_many(WORKERS)
        if len({session.state.name[0] for session in sessions}) == WORKERS:
            client.reset_many([(session, 0, "5", None) for session in sessions])
            return sessions
        client.close_many(sessions)
        time.sleep(0.05)
    raise AssertionError("not every worker serves")


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
    assert psutil.wait_procs(workers, timeout=5)[1] == []


@pytest.mark.parametrize(
    ("how", "stdin"),
    [(signal.SIGTERM, "null"), (signal.SIGINT, "pipe"), (signal.SIGTERM, "closed")],
)
def test_a_stop_prints_no_error_whatever_the_standard_input_is(start, tmp_path, how, stdin):
    (tmp_path / "breakable.py").write_text(BREAKABLE)
    (tmp_path / "without_stdin.py").write_text(WITHOUT_STDIN)
    served = start(
        "breakable:Breakable", "--port", "0", "--workers", "2", folder=tmp_path,
        stdin=subprocess.DEVNULL if stdin == "null" else subprocess.PIPE,
        module="without_stdin" if stdin == "closed" else "agentgym_servers",
    )  # fmt: skip
    served.address()
    assert served.stop(how) == 0
    assert "Fatal Python error" not in served.errors and "Traceback" not in served.errors
    assert served.errors.count("serving: stopped") == 2


def test_a_stop_while_the_workers_start_ends_them(start):
    served = start("worlds:Guess", "--port", "0", "--workers", "2", stdin=subprocess.DEVNULL)
    seen = set()
    workers = [next_child(served, seen) for _ in range(2)]
    assert served.stop() == 0
    assert psutil.wait_procs(workers, timeout=5)[1] == []
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
                await asyncio.wait_for(task, 5)


class Part:
    """A process's sessions: it takes new ones a moment later, or never."""

    def __init__(self, reply):
        self.reply = reply
        self.taken = 0

    async def ask(self, path, requests):
        await asyncio.sleep(0)
        self.taken += len(requests)
        return [self.reply for _ in requests]

    async def figures(self):
        return Figures()

    async def start(self): ...

    async def stop(self): ...


async def test_calls_at_the_same_time_all_find_the_process_that_takes_sessions():
    gone = CreateReply(error=WireError("shutting_down", "gone"))
    parts = [Part(gone), Part(CreateReply("1.x")), Part(gone)]
    codec = Codec(SessionTable(Guess, env_id="worlds:Guess"))
    router = Router(codec, parts, count_codec=False)
    calls = [router.ask("/v1/sessions", [CreateRequest()]) for _ in range(30)]
    replies = await asyncio.gather(*calls)
    assert [reply.session for (reply,) in replies] == ["1.x"] * 30
    assert parts[1].taken == 30
