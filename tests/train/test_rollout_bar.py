"""The line of progress: how many episodes are over, and what the others wait for."""

from __future__ import annotations

import asyncio
import io
import re

from rich.console import Console

from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.limits import ConcurrencyLimits
from agentgym_train.rollout.progress import ConcurrencyText, RolloutBar, progress_bar
from tests.train.inprocess import SilentWorld, Waiting, rollouts
from waiting import turned


def screen(terminal=True):
    return Console(file=io.StringIO(), force_terminal=terminal, width=160, color_system=None)


async def test_the_line_says_whom_the_episodes_wait_for_and_how_many_are_over(make_host):
    gate = asyncio.Event()
    engine = Waiting(
        lambda prompt, turn: "1" if turn < 2 else "5",
        lambda prompt, turn: gate if turn == 2 else None,
    )
    loop, console = rollouts(make_host(), engine.actors()), screen()
    with progress_bar(console) as progress:
        bar = RolloutBar(progress, loop.concurrency_limits)
        bar.begin(3)
        starts = [EpisodeSpec("5", seed) for seed in range(3)]
        playing = asyncio.create_task(loop.collect(starts, 5, on_episode=bar.advance))
        await turned(
            lambda: (
                loop.concurrency_limits.turns == 6 and loop.concurrency_limits.policy.waiting == 3
            )
        )
        progress.refresh()
        gate.set()
        await playing
        progress.refresh()
        (task,) = progress.tasks
        assert (task.completed, task.total, task.visible) == (3, 3, True)
        bar.end()
        assert not task.visible
    drawn = console.file.getvalue()
    assert re.search(r"episodes .*6 turns  \d+ tok/s  waiting: policy 3, environments 0", drawn)
    assert "9 turns" in drawn and "waiting: policy 0, environments 0" in drawn


async def test_a_silent_world_is_what_is_waited_for(make_host):
    engine = Waiting(lambda prompt, turn: "1", lambda prompt, turn: None)
    loop = rollouts(make_host(), engine.actors(), transport=SilentWorld)
    playing = asyncio.create_task(loop.collect([EpisodeSpec("5", s) for s in range(2)], 5))
    await turned(
        lambda: (
            loop.concurrency_limits.environment.waiting == 2 and loop.concurrency_limits.turns == 2
        )
    )
    assert "waiting: policy 0, environments 2" in str(ConcurrencyText(loop.concurrency_limits))
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)


def test_tokens_a_second_are_of_the_step_and_not_of_the_run(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("agentgym_train.rollout.progress.time.monotonic", lambda: now[0])
    concurrency_limits = ConcurrencyLimits()
    concurrency_limits.turns, concurrency_limits.tokens = 1000, 50_000
    text = ConcurrencyText(concurrency_limits)
    concurrency_limits.turns, concurrency_limits.tokens, now[0] = 1004, 50_300, 102.0
    assert str(text).startswith("4 turns  150 tok/s")


def test_where_no_terminal_is_there_is_no_line():
    console = screen(terminal=False)
    with progress_bar(console) as progress:
        RolloutBar(progress, ConcurrencyLimits()).begin(3)
        assert not progress.tasks[0].visible
