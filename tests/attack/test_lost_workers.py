"""`--workers` under kills, late requests and cancellations: no episode is lost or mixed up."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
import requests

from agentgym_env import AsyncEnvClient, EnvClient
from agentgym_env.client.transports import Answer, Call, HttpTransport
from agentgym_env.vector import RemoteVectorEnv
from hosting import Served
from processes import workers_of

pytestmark = pytest.mark.slow
ENV_ID = "worlds:Guess"
RACES = 150
CANCELLATIONS = 2000
KILLS = 12


class Killer:
    """Kills workers of a server at random moments, one after another, until it is stopped.

    It waits until so many of them serve: a slow machine is not killed faster than it restarts.
    """

    def __init__(self, served: Served, seed: int, serving: int) -> None:
        self.kills = 0
        self._serving = serving
        self._served = served
        self._draw = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._draw.uniform(0.3, 1.2)):
            workers = workers_of(self._served.process)
            if sum(map(_listens, workers)) >= self._serving:
                victim = self._draw.choice(workers)
                victim.kill()
                victim.wait(60)
                self.kills += 1

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def _listens(worker: psutil.Process) -> bool:
    return any(c.status == psutil.CONN_LISTEN for c in worker.net_connections("tcp"))


@contextmanager
def killing(served: Served, seed: int, serving: int) -> Iterator[Killer]:
    killer = Killer(served, seed, serving)
    try:
        yield killer
    finally:
        killer.stop()


def workers_become(served: Served, count: int) -> bool:
    """Whether so many workers serve: each has its share of the sessions open again."""
    deadline = time.monotonic() + 60
    with EnvClient(served.address()) as client:
        while time.monotonic() < deadline:
            sessions = client.open_many(count)
            client.close_many(sessions)
            if len({session.state.name[0] for session in sessions}) == count:
                return True
            time.sleep(0.1)
    return False


def metric(address: str, name: str) -> float:
    """A figure of the whole server."""
    page = requests.get(f"{address}/metrics", timeout=60).text
    return next(float(v) for n, _, v in (x.partition(" ") for x in page.splitlines()) if n == name)


def report(line: str) -> None:
    sys.stdout.write(line + "\n")


def test_kills_of_workers_during_resets_and_steps(run):
    # Without one of its workers, the server has room for two thirds of the episodes only.
    count, words = 600, ("--workers", "3", "--max-sessions", "600")
    served = run(ENV_ID, "--port", "0", *words)
    # A reset that takes seconds is hit by several kills: it may try as often.
    envs = RemoteVectorEnv(ENV_ID, count, served.address(), retries=100)
    started = lost_at_reset = lost_in_steps = wrong = 0
    slowest = 0.0
    with killing(served, seed=0, serving=3) as killer:
        while killer.kills < KILLS or started < 5_000:
            began = time.monotonic()
            _, infos = envs.reset(options={"task": "5"})
            slowest = max(slowest, time.monotonic() - began)
            started += count
            lost_at_reset += int(np.sum(infos.get("_error", np.zeros(count))))
            for action in ("4", "3"):
                observations, rewards, _, truncated, _ = envs.step([action] * count)
                going = ~truncated
                wrong += sum(observations[i] != f"'{action}' is wrong." for i in going.nonzero()[0])
                wrong += int(np.nansum(rewards))
                lost_in_steps += int(truncated.sum())
                if truncated.any():
                    break
    envs.close()
    assert workers_become(served, 3)
    left = metric(served.address(), "agentgym_sessions")
    report(
        f"{killer.kills} kills during {started:,} resets: {lost_at_reset} lost at reset, "
        f"{lost_in_steps} in steps, {wrong} wrong replies, {left:g} sessions left open; "
        f"slowest reset {slowest:.1f} s"
    )
    assert (lost_at_reset, wrong, left) == (0, 0, 0)


def test_kills_of_workers_while_sessions_open(run):
    served = run(ENV_ID, "--port", "0", "--workers", "3", "--max-sessions", "3000")
    opened = failed = 0
    with EnvClient(served.address()) as client, killing(served, seed=1, serving=2) as killer:
        while killer.kills < KILLS or opened < KILLS:
            try:
                sessions = client.open_many(1000)
            except Exception as error:
                failed += 1
                report(f"{type(error).__name__}: {error}")
                continue
            opened += 1
            client.close_many(sessions)
    assert workers_become(served, 3)
    left = metric(served.address(), "agentgym_sessions")
    report(
        f"{killer.kills} kills while 1,000 sessions were opened {opened} times: {failed} failed, "
        f"{left:g} sessions left open"
    )
    assert (failed, left) == (0, 0)


class Recorded(HttpTransport):
    """Keeps the last step, for an attacker who sends it again."""

    last = b""

    def send(self, call: Call) -> Answer:
        """The server's answer."""
        if call.path == "/v1/step":
            self.last = call.body
        return super().send(call)


def test_late_steps_do_not_reach_the_next_episode(run):
    served = run(ENV_ID, "--port", "0", "--workers", "2")
    draw = random.Random(0)
    transport = Recorded(served.address())
    codes: Counter[str] = Counter()
    reached = 0

    def send_late(body: bytes, wait_s: float) -> None:
        time.sleep(wait_s)
        # A connection of its own: perhaps to the other worker.
        headers = {"Content-Type": "application/json", "Connection": "close"}
        (reply,) = requests.post(
            served.address() + "/v1/step", body, headers=headers, timeout=60
        ).json()
        codes[reply.get("error", {}).get("code", "stored reply")] += 1

    with EnvClient(transport) as client:
        for race in range(RACES):
            session = client.open()
            session.reset(seed=0, task="5")
            session.step("4")
            late = threading.Thread(target=send_late, args=(transport.last, draw.uniform(0, 0.004)))
            if race % 2:  # about the moment of the reset, or certainly between it and the step
                late.start()
                time.sleep(draw.choice((0, draw.uniform(0, 0.01))))
            session.reset(seed=1, task="6")
            if not race % 2:
                late.start()
                late.join()
            reply = session.step("3")
            late.join()
            reached += reply.observation != "'3' is wrong."
            session.close()
    report(f"{RACES} late steps: {reached} reached the next episode; {dict(codes)}")
    assert reached == 0
    assert codes["stale_turn"] >= RACES / 2 and set(codes) <= {"stale_turn", "stored reply"}


async def test_cancellations_at_any_moment_leave_no_session(run):
    served = run(ENV_ID, "--port", "0", "--workers", "2")
    address, draw = served.address(), random.Random(0)
    ends: Counter[str] = Counter()

    async def open_one(client: AsyncEnvClient) -> None:
        session = await client.open()
        try:
            await session.reset(seed=0, task="5")
            await session.step("4")
        finally:
            await session.close()

    async def open_some(client: AsyncEnvClient) -> None:
        sessions = await client.open_many(3)
        try:
            await client.reset_many([(session, 0, "5", None) for session in sessions])
        finally:
            # Tasks that are cancelled before they begin would not close anything.
            await asyncio.shield(asyncio.gather(*(session.close() for session in sessions)))

    async def cancelled(client: AsyncEnvClient) -> None:
        task = asyncio.create_task(draw.choice((open_one, open_some))(client))
        # At once in every second case: then it is cancelled for certain.
        await asyncio.sleep(draw.choice((0, 0, draw.uniform(0, 0.005), draw.uniform(0, 0.1))))
        task.cancel()
        if draw.random() < 0.3:
            await asyncio.sleep(0)
            task.cancel()  # also while it closes what it had
        (end,) = await asyncio.gather(task, return_exceptions=True)
        ends[type(end).__name__] += 1

    async with AsyncEnvClient(address) as client:
        for _ in range(CANCELLATIONS // 50):
            await asyncio.gather(*(cancelled(client) for _ in range(50)))
    left = metric(address, "agentgym_sessions")
    report(f"{CANCELLATIONS} cancellations, {dict(ends)}: {left:g} sessions left open")
    assert ends["CancelledError"] > CANCELLATIONS / 3
    assert set(ends) <= {"CancelledError", "NoneType"}
    assert left == 0
