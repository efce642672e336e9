"""Limits, deadlines and rest: who waits for whom, and who is to blame."""

from __future__ import annotations

import asyncio

import pytest

from agentgym_env.errors import teaches
from agentgym_train.config.policy import RolloutLimits
from agentgym_train.rollout.actors import ExpertActor
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.limits import ConcurrencyLimits
from tests.train.inprocess import SilentWorld, Waiting, rollouts
from worlds import Trouble

NEVER = asyncio.Event()


def wrong_then(number):
    return lambda prompt, turn: "1" if turn < number else "5"


async def test_engine_calls_have_a_limit_of_their_own(make_host):
    engine = Waiting(wrong_then(2), lambda prompt, turn: None)
    loop = rollouts(make_host(), engine.actors(), engine_concurrency=3)
    played = await loop.collect([EpisodeSpec("5", seed) for seed in range(12)], 5)
    assert engine.most == 3
    assert {(t.outcome, len(t.turns)) for t in played} == {("success", 3)}
    assert (loop.concurrency_limits.turns, loop.concurrency_limits.policy.waiting) == (36, 0)
    assert loop.concurrency_limits.tokens == sum(sum(t.tokens.loss_mask) for t in played)


async def test_calls_to_environments_have_a_limit_of_their_own():
    concurrency_limits, most, inside = ConcurrencyLimits(RolloutLimits(env_concurrency=2)), [], []

    async def call(number):
        with concurrency_limits.episode() as clock:
            async with concurrency_limits.environment.call(clock):
                inside.append(number)
                most.append(len(inside))
                await asyncio.sleep(0)
                inside.remove(number)

    await asyncio.gather(*map(call, range(8)))
    assert max(most) == 2 and len(most) == 8


async def test_an_episode_whose_policy_is_too_slow_ends_there_and_teaches_what_it_did(
    make_host, leap_when
):
    host, begun = make_host(), []

    def wait(prompt, turn):
        begun.append(turn)
        return NEVER if turn == 2 else None

    engine = Waiting(wrong_then(9), wait)
    loop = rollouts(host, engine.actors(), episode_timeout_s=60.0)
    leap_when(lambda: 2 in begun, asyncio.get_running_loop())
    (cut,) = await loop.collect([EpisodeSpec("5", 0)], 9)
    assert (cut.outcome, len(cut.turns), cut.error, cut.attempts) == ("policy_timeout", 2, None, 1)
    assert teaches(cut.outcome)
    assert len(cut.tokens.turn_ends) == 2 and sum(cut.tokens.loss_mask) > 0
    assert (len(host.table), engine.live) == (0, set())


async def test_an_episode_whose_world_is_too_slow_is_lost_and_not_tried_again(make_host, leap_when):
    host = make_host()
    SilentWorld.steps = 0
    engine = Waiting(wrong_then(9), lambda prompt, turn: None)
    loop = rollouts(host, engine.actors(), transport=SilentWorld, episode_timeout_s=60.0)
    leap_when(lambda: SilentWorld.steps, asyncio.get_running_loop())
    (lost,) = await loop.collect([EpisodeSpec("5", 0)], 9)
    assert (lost.outcome, lost.turns, lost.tokens, lost.attempts) == (
        "environment_lost", [], None, 1,
    )  # fmt: skip
    assert lost.error.startswith("DeadlinePassed: the episode exceeded episode_timeout_s")
    assert (SilentWorld.steps, len(host.table)) == (1, 0)


async def test_a_sampled_turn_that_the_world_left_unanswered_keeps_its_tokens(make_host, leap_when):
    """The policy took most of the time, and the clock ran out in the world."""
    loop, slow, begun = asyncio.get_running_loop(), asyncio.Event(), []
    SilentWorld.steps = 0
    engine = Waiting(wrong_then(9), lambda prompt, turn: begun.append(turn) or slow)
    leap_when(lambda: begun, loop, 50.0)
    loop.call_later(50.0, slow.set)
    limits = rollouts(make_host(), engine.actors(), transport=SilentWorld, episode_timeout_s=80.0)
    leap_when(lambda: SilentWorld.steps, loop, 31.0)
    (cut,) = await limits.collect([EpisodeSpec("5", 0)], 9)
    assert cut.outcome == "policy_timeout"
    (turn,) = cut.turns
    assert (turn.response, turn.action, turn.observation, turn.reward) == ("1", "1", "", 0.0)
    assert len(cut.tokens.turn_ends) == 1


async def test_a_cancelled_episode_leaves_no_session(make_host):
    host = make_host()
    loop = rollouts(host, ExpertActor)
    for pauses in range(12):
        playing = asyncio.create_task(loop.collect([EpisodeSpec("5", 0)] * 3, 9))
        for _ in range(pauses):
            await asyncio.sleep(0)
        playing.cancel()
        await asyncio.wait([playing])
        async with asyncio.timeout(120):  # what was being opened is closed in the background
            while len(host.table):
                await asyncio.sleep(0)


@pytest.mark.parametrize("attempts", [1, 3])
async def test_the_limits_say_how_often_a_lost_episode_is_tried_again(make_host, attempts):
    loop = rollouts(make_host(Trouble), ExpertActor, retries=attempts - 1)
    (lost,) = await loop.collect([EpisodeSpec("broken", 0)], 9)
    assert (lost.attempts, teaches(lost.outcome)) == (attempts, False)
