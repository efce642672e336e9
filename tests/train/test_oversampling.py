"""More groups than are needed: the slowest are dropped or carried, and always counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from agentgym_env.text_env import TaskSet
from agentgym_train.config.read import config_from
from agentgym_train.config.worlds import World
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.horizon import Fixed
from agentgym_train.rollout.oversampling import OversamplingPool
from agentgym_train.training.sampler import StepSampler, StepWorld
from tests.train.inprocess import Waiting, rollouts


class Slow:
    """A policy that solves every task but waits for the gate of the slow one, task 6."""

    def __init__(self, host):
        self.gate, self.gated = asyncio.Event(), True
        self.engine = Waiting(self.answer, self.wait)
        self.rollouts = rollouts(host, self.engine.actors())
        self.host = host

    def answer(self, prompt, turn):
        return str(turn + 1)

    def wait(self, prompt, turn):
        return self.gate if turn == 5 and self.gated else None

    def pool(self, **settings):
        return OversamplingPool(
            self.rollouts.concurrency_limits, **{"max_staleness": 4, **settings}
        )


def groups(*tasks, step=0):
    """Groups of two episodes."""
    return [
        [EpisodeSpec(task, step, sample=n, group=number) for n in range(2)]
        for number, task in enumerate(tasks)
    ]


async def test_the_slowest_group_is_dropped_whole_and_counted(make_host):
    slow = Slow(make_host())
    pool = slow.pool(carries=False)
    played = await pool.collect(
        slow.rollouts, groups("6", "2", "3"), 9, wanted=2, step=0, version=0
    )
    assert [(t.task, t.group, t.outcome) for t in played] == [
        ("2", 1, "success"), ("2", 1, "success"), ("3", 2, "success"), ("3", 2, "success"),
    ]  # fmt: skip
    assert pool.dropped == 2
    assert (len(slow.host.table), slow.engine.live) == (0, set())


async def test_a_carried_group_goes_on_with_new_weights_and_takes_a_place(make_host):
    slow = Slow(make_host())
    pool = slow.pool(carries=True)
    first = await pool.collect(slow.rollouts, groups("6", "2", "6"), 5, wanted=1, step=0, version=0)
    assert [(t.task, t.step) for t in first] == [("2", 0)] * 2
    assert len(slow.host.table) > 0, "the others rest"
    await slow.engine.update_weights(None, 1)
    second = await pool.collect(
        slow.rollouts, groups("2", "3", "4", step=1), 9, wanted=3, step=1, version=1
    )
    assert pool.dropped == 0
    assert [(t.task, t.step, t.group, t.outcome) for t in second] == [
        ("6", 0, 0, "horizon"), ("6", 0, 0, "horizon"),
        ("6", 0, 2, "horizon"), ("6", 0, 2, "horizon"),
        ("2", 1, 0, "success"), ("2", 1, 0, "success"),
    ]  # fmt: skip
    carried = [t for t in second if t.step == 0]
    for trajectory in carried:
        versions = [v for v in trajectory.tokens.versions if v >= 0]
        assert versions == sorted(versions) and set(versions) == {0, 1}
    await pool.close()
    assert (len(slow.host.table), slow.engine.live) == (0, set())


async def test_a_group_that_grew_too_old_is_dropped_and_counted(make_host):
    slow = Slow(make_host())
    pool = slow.pool(carries=True, max_staleness=1)
    slow.gated, asked = False, {"wanted": 1}
    await pool.collect(slow.rollouts, groups("9", "2"), 9, step=0, version=0, **asked)
    for step in (1, 2):
        new = groups("2", "2", "2", step=step)
        await pool.collect(slow.rollouts, new, 9, step=step, version=step, **asked)
        assert pool.dropped == (2 if step == 2 else 0)
    await pool.close()
    assert len(slow.host.table) == 0


async def test_what_breaks_is_raised_and_leaves_nothing_behind(make_host):
    slow = Slow(make_host())

    def broken(prompt, turn):
        raise ZeroDivisionError("broken")

    slow.engine._script = broken
    pool = slow.pool(carries=True)
    with pytest.raises(ExceptionGroup, match="unhandled errors in a TaskGroup"):
        await pool.collect(slow.rollouts, groups("2", "3"), 9, wanted=1, step=0, version=0)
    assert len(slow.host.table) == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_the_tasks_of_a_step_are_those_of_one_process_and_all_come_once_an_epoch(processes):
    needed = {"model": "hub/id", "env": "textcraft", "output_dir": "x"}
    config = config_from({**needed, "prompts_per_step": 2, "num_generations": 2})
    rollout_runner = SimpleNamespace(
        tasks=TaskSet({"train": list("123456")}), concurrency_limits=None
    )

    def tasks(step, rank, count):
        settings = World(env="textcraft", split="train")
        worlds = [StepWorld(settings, rollout_runner, SimpleNamespace(), Fixed(3))]
        episodes = StepSampler(config, worlds, rank=rank, processes=count)
        return [draw.task for draw in episodes.tasks(step)]

    for step in (2, 0, 1):  # in any order, as a resumed run asks for them
        spread = [task for rank in range(processes) for task in tasks(step, rank, processes)]
        assert spread == tasks(step, 0, 1) and spread[::2] == spread[1::2]
    epochs = [task for step in range(6) for task in tasks(step, 0, 1)[::2]]
    assert sorted(epochs[:6]) == sorted(epochs[6:]) == list("123456")
    assert epochs[:6] != epochs[6:]
