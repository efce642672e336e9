"""Requests that are late, repeated or cancelled, and servers that are full or lose workers."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import requests

from agentgym_env.client.aio import AsyncEnvClient, AsyncSession
from agentgym_env.client.protocol import to_exception
from agentgym_env.client.sync import EnvClient
from agentgym_env.errors import AgentGymError, BadRequest, EnvironmentLost
from agentgym_env.wire import WireError
from hosting import Served, sessions_become

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def serve():
    """Starts servers of `Guess`."""
    started: list[Served] = []

    def start(*words: str) -> Served:
        started.append(Served(SUPPORT, "worlds:Guess", "--port", "0", *words))
        started[-1].address()
        return started[-1]

    yield start
    for served in started:
        assert served.stop() == 0


def post(address: str, route: str, *items: dict) -> list[dict]:
    return requests.post(f"{address}/v1/{route}", json=list(items), timeout=60).json()


@pytest.mark.parametrize("words", [(), ("--workers", "2"), ("--isolate",)], ids=" ".join)
def test_late_and_repeated_requests_never_reach_the_next_episode(serve, words):
    address = serve(*words).address()
    reached = 0
    names = [reply["session"] for reply in post(address, "sessions", *[{}] * 150)]
    for number, name in enumerate(names):
        first = {"session": name, "seed": number, "task": "5", "episode": 1}
        step = {"session": name, "turn": 1, "action": "1", "episode": 1}
        (begun,) = post(address, "reset", first)
        # A reset that is repeated before the first turn is answered again; not afterwards.
        assert post(address, "reset", first) == [begun]
        (reply,) = post(address, "step", step)
        assert post(address, "step", step) == [reply]
        (other,) = post(address, "step", {**step, "action": "5"})
        assert other["error"]["code"] == "stale_turn", "another action for the same turn"
        (late,) = post(address, "reset", first)
        assert late["error"]["code"] == "stale_turn"
        post(address, "reset", {**first, "seed": 7, "episode": 2})
        (late,) = post(address, "step", step)
        reached += late.get("error", {}).get("code") != "stale_turn"
        (late,) = post(address, "reset", first)
        assert late["error"]["code"] == "stale_turn"
        (reply,) = post(address, "step", {**step, "action": "5", "episode": 2})
        assert reply["observation"] == "Right!" and reply["terminated"]
    sys.stdout.write(f"{reached} of 150 late steps reached the next episode\n")
    assert reached == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_thousand_cancelled_calls_leave_no_session(serve):
    address = serve("--workers", "2").address()
    chance = random.Random(7)
    received: list[AsyncSession] = []
    cancelled = 0

    async def use(client: AsyncEnvClient) -> None:
        if chance.random() < 0.2:
            sessions = await client.open_many(3)
        else:
            sessions = [await client.open()]
        received.extend(sessions)
        await sessions[0].close()

    async def soak() -> None:
        nonlocal cancelled
        async with AsyncEnvClient(address) as client:
            for _ in range(100):
                tasks = [asyncio.create_task(use(client)) for _ in range(20)]
                await asyncio.sleep(chance.choice([0, 0, 0.001, 0.002, 0.005, 0.01]))
                for task in tasks:
                    if chance.random() < 0.8:
                        task.cancel()
                for end in await asyncio.gather(*tasks, return_exceptions=True):
                    cancelled += isinstance(end, asyncio.CancelledError)
            for session in received:
                await session.close()

    asyncio.run(soak())
    sys.stdout.write(f"{cancelled} of 2,000 tasks were cancelled\n")
    assert cancelled > 500 and len(received) > 100
    assert sessions_become(address, 0)


def test_only_the_sessions_for_which_there_is_no_room_are_refused(serve):
    address = serve("--workers", "2", "--max-sessions", "5").address()

    async def open_eight() -> list[object]:
        async with AsyncEnvClient(address) as client:
            return await asyncio.gather(*(client.open() for _ in range(8)), return_exceptions=True)

    ends = asyncio.run(open_eight())
    refused = [end for end in ends if isinstance(end, BadRequest)]
    assert len(refused) == 3 and {e.code for e in refused} == {"too_many_sessions"}
    with EnvClient(address) as client:
        assert all(isinstance(end, BadRequest) for end in client.open_some(3))
        with pytest.raises(BadRequest, match="sessions are taken"):
            client.open_many(3)


@pytest.mark.slow
def test_sessions_are_opened_while_workers_restart(serve):
    served = serve("--workers", "3")
    workers = psutil.Process(served.process.pid).children()
    assert len(workers) >= 3
    lost, opened = 0, 0
    began = time.monotonic()
    with EnvClient(served.address(), retries=5) as client:
        for round_number in range(15):
            victims = psutil.Process(served.process.pid).children()
            victims[round_number % len(victims)].send_signal(signal.SIGKILL)
            for end in client.open_some(64):
                lost += isinstance(end, AgentGymError)
                opened += not isinstance(end, AgentGymError)
    sys.stdout.write(
        f"{opened} sessions were opened and {lost} refused during 15 kills of 3 workers "
        f"({time.monotonic() - began:.1f} s)\n"
    )
    assert lost == 0


def test_the_error_of_a_late_request_is_a_clear_one():
    error = to_exception(WireError("stale_turn", "episode 1 is not the session's, which is 2"), "x")
    assert isinstance(error, BadRequest) and error.code == "stale_turn"
    assert not isinstance(error, EnvironmentLost)
