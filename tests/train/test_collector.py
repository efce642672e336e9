"""Rollouts on a local server that dies under them: recorded, played again, never hung."""

from __future__ import annotations

import os
import signal

import pytest

import hosting
import worlds
from agentgym_env.errors import BadRequest, ServerStartFailed
from agentgym_env.launch import local_server
from agentgym_train.rollout.actors import ExpertPlayer, RandomPlayer
from agentgym_train.rollout.loop import EpisodeStart
from agentgym_train.rollout.runner import Collector

TEXTCRAFT = "agentgym/TextCraft-v0"


def killing(pid: int, once: list[int]):
    """Experts of whom the first to take a second turn kills process `pid`."""

    class Killer(ExpertPlayer):
        turn = 0

        async def act(self):
            self.turn += 1
            if self.turn == 2 and not once:
                once.append(pid)
                os.kill(pid, signal.SIGKILL)
            return await super().act()

    return Killer


def starts(collector: Collector, count: int) -> list[EpisodeStart]:
    deep = [t for t in collector.tasks.split("train") if collector.tasks.category(t) == "depth 2"]
    return [EpisodeStart(task, seed) for seed, task in enumerate(deep[:count])]


@pytest.mark.timeout(90)
def test_a_killed_local_server_is_replaced_and_its_episodes_are_recorded_and_played_again():
    with Collector(TEXTCRAFT) as collector:
        dead = collector.server.process.pid
        chosen = starts(collector, 6)
        played = collector.collect(killing(dead, []), chosen, horizon=50)
        assert [t.task for t in played] == [s.task for s in chosen]
        assert {t.outcome for t in played} == {"success"}
        assert all(t.attempts > 1 for t in played)
        assert all(t.error.startswith("EnvironmentLost: ") for t in played)
        assert collector.server.process.pid != dead
        after = collector.collect(ExpertPlayer, chosen, horizon=50)
        assert [(t.outcome, t.attempts, t.error) for t in after] == [("success", 1, None)] * 6


@pytest.mark.timeout(90)
def test_episodes_on_a_killed_server_of_someone_else_come_back_lost_with_their_error():
    server = local_server(TEXTCRAFT)
    with Collector(TEXTCRAFT, [server.address]) as collector:
        chosen = starts(collector, 4)
        played = collector.collect(killing(server.process.pid, []), chosen, horizon=50)
    server.close()
    assert {t.outcome for t in played} == {"environment_lost"}
    assert all(t.error and t.turns == [] and t.reward == 0.0 for t in played)


def test_a_collector_of_an_environment_that_cannot_start_says_why():
    with pytest.raises(ServerStartFailed, match="no such luck"):
        Collector(hosting.UNMAKEABLE)


@pytest.mark.timeout(90)
def test_no_more_episodes_are_under_way_than_the_server_holds_sessions(serve):
    server = serve(worlds.Guess, max_sessions=3)
    with Collector(hosting.GUESS, [server.address], concurrency=50) as collector:
        begun = [EpisodeStart(task, 0) for task in collector.tasks.split("train")] * 4
        played = collector.collect(ExpertPlayer, begun, horizon=5)
    assert {(t.outcome, t.attempts) for t in played} == {("success", 1)}


def test_settings_of_an_environment_are_for_a_local_server(serve):
    server = serve(worlds.Guess)
    with pytest.raises(BadRequest, match="agentgym serve --env-kwargs"):
        Collector(hosting.GUESS, [server.address], env_kwargs={"x": 1})
    with Collector("agentgym/BabyAI-v0", env_kwargs={"legacy": True}) as collector:
        (one,) = collector.collect(RandomPlayer, [EpisodeStart("GoToRedBall/0", 0)], horizon=1)
    assert "In front of you in this room" in one.observation
