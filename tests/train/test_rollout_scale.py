"""The turn loop at scale: how near to the bound, and nothing left behind."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import psutil
import pytest

from agentgym_env.client.aio import AsyncEnvClient
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.loop import Rollouts
from tests.train.inprocess import Leaping, Waiting
from waiting import until


def benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "rollout.py"
    spec = importlib.util.spec_from_file_location("rollout_benchmark", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_rollouts_are_near_the_bound_and_lockstep_is_not(seed):
    measured = benchmark()
    episodes = measured.drawn(64, 0.1, 0.05, seed)
    bound = measured.bound_s(episodes, 64)
    with asyncio.Runner(loop_factory=Leaping) as runner:
        seconds = runner.run(measured.ours_s(episodes, 64))
    assert bound * 0.999 <= seconds <= 1.01 * bound
    assert measured.lockstep_s(episodes, 64, steps_in_turn=False) >= 2 * seconds
    assert measured.lockstep_s(episodes, 64, steps_in_turn=True) >= 2 * seconds


@pytest.mark.slow
def test_with_a_real_model_rollouts_are_near_the_bound_and_lockstep_is_not():
    """In processor time, so that a busy machine does not count."""
    measured = benchmark()
    episodes = measured.drawn(24, 0.1, 0.4, 0)
    tokenizer = measured.tokenizer_for(len(episodes))
    model = measured.small_policy(tokenizer, layers=2, hidden=32, heads=1).eval()
    engine = measured.HFEngine(model, tokenizer.pad_token_id)
    with asyncio.Runner(loop_factory=measured.ProcessorLoop) as runner:
        bound, ours, threads, trl = runner.run(measured.tiny_s(engine, episodes, 24, 50.0))
    assert 0.9 * bound <= ours <= 1.15 * bound
    assert threads >= 2 * ours and trl >= 2 * ours


def test_the_bound_and_lockstep_by_hand():
    """Two episodes: 1+2 and then 3+1; 5+1 alone."""
    measured = benchmark()
    episodes = [[measured.Turn(1, 2), measured.Turn(3, 1)], [measured.Turn(5, 1)]]
    assert measured.bound_s(episodes, 2) == 7  # the first
    assert measured.bound_s(episodes, 1) == 13  # all work
    assert measured.lockstep_s(episodes, 2, steps_in_turn=False) == 5 + 2 + 3 + 1
    assert measured.lockstep_s(episodes, 2, steps_in_turn=True) == 5 + (2 + 1) + 3 + 1


def test_a_thousand_episodes_at_once_leave_no_session_task_or_file_descriptor(serve):
    server = serve(max_sessions=1000)
    gates = {}
    """How many are under way together before the first turns are answered: an event."""

    def wait(prompt, turn):
        ((most, gate),) = gates.items()
        if engine.under_way >= most:
            gate.set()
        return gate if turn == 0 else None

    engine = Waiting(lambda prompt, turn: "1" if turn < 2 else "5", wait)
    here = psutil.Process()

    async def collected(count):
        gates.clear()
        gates[count // 2 + 1] = asyncio.Event()
        client = AsyncEnvClient(server.address)
        loop = Rollouts(client, engine.actors(), env_id="tests/Guess-v0", concurrency=1000)
        starts = [EpisodeSpec("5", seed) for seed in range(count)]
        played = await loop.collect(starts, 5)
        left = len(asyncio.all_tasks())
        await client.close()
        await asyncio.sleep(0)
        return played, left

    asyncio.run(collected(2))  # what is opened once and for all
    descriptors = here.num_fds()
    played, left = asyncio.run(collected(1000))
    assert {(t.outcome, len(t.turns), t.attempts) for t in played} == {("success", 3, 1)}
    assert engine.most > 500, "they were under way together"
    assert left == 1, "only the one that asks"
    assert len(server.host.table) == 0 and engine.live == set() and engine.under_way == 0
    until(lambda: here.num_fds() <= descriptors)  # the server's ends close a moment later
