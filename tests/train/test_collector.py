"""Rollouts on a local server that dies under them: recorded, played again, never hung."""

from __future__ import annotations

import os
import signal

import pytest

import hosting
import worlds
from agentgym_env.errors import BadRequest, ServerStartFailed
from agentgym_env.launch import local_server
from agentgym_train.rollout.actors import ExpertActor, RandomActor
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.runner import RolloutRunner

TEXTCRAFT = "agentgym/TextCraft-v0"
OWN = {"legacy": False}
"""Settings of a server that is not the one that other tests share."""


def killing(pid: int, once: list[int]):
    """Experts of whom the first to take a second turn kills process `pid`."""

    class Killer(ExpertActor):
        turn = 0

        async def act(self):
            self.turn += 1
            if self.turn == 2 and not once:
                once.append(pid)
                os.kill(pid, signal.SIGKILL)
            return await super().act()

    return Killer


def starts(rollout_runner: RolloutRunner, count: int) -> list[EpisodeSpec]:
    deep = [
        t
        for t in rollout_runner.tasks.split("train")
        if rollout_runner.tasks.category(t) == "depth 2"
    ]
    return [EpisodeSpec(task, seed) for seed, task in enumerate(deep[:count])]


def test_a_killed_local_server_is_replaced_and_its_episodes_are_recorded_and_played_again():
    with RolloutRunner(TEXTCRAFT, env_kwargs=OWN) as rollout_runner:
        dead = rollout_runner.server.process.pid
        chosen = starts(rollout_runner, 6)
        played = rollout_runner.collect(killing(dead, []), chosen, horizon=50)
        assert [t.task for t in played] == [s.task for s in chosen]
        assert {t.outcome for t in played} == {"success"}
        assert all(t.attempts > 1 for t in played)
        assert all(t.error.startswith("EnvironmentLost: ") for t in played)
        assert rollout_runner.server.process.pid != dead
        after = rollout_runner.collect(ExpertActor, chosen, horizon=50)
        assert [(t.outcome, t.attempts, t.error) for t in after] == [("success", 1, None)] * 6


def test_episodes_on_a_killed_server_of_someone_else_come_back_lost_with_their_error():
    server = local_server(TEXTCRAFT, OWN)
    with RolloutRunner(TEXTCRAFT, [server.address]) as rollout_runner:
        chosen = starts(rollout_runner, 4)
        played = rollout_runner.collect(killing(server.process.pid, []), chosen, horizon=50)
    server.close()
    assert {t.outcome for t in played} == {"environment_lost"}
    assert all(t.error and t.turns == [] and t.reward == 0.0 for t in played)


def test_a_collector_of_an_environment_that_cannot_start_says_why():
    with pytest.raises(ServerStartFailed, match="no such luck"):
        RolloutRunner(hosting.UNMAKEABLE)


def test_no_more_episodes_are_under_way_than_the_server_holds_sessions(serve):
    server = serve(worlds.Guess, max_sessions=3)
    with RolloutRunner(hosting.GUESS, [server.address], concurrency=50) as rollout_runner:
        begun = [EpisodeSpec(task, 0) for task in rollout_runner.tasks.split("train")] * 4
        played = rollout_runner.collect(ExpertActor, begun, horizon=5)
    assert {(t.outcome, t.attempts) for t in played} == {("success", 1)}


def test_settings_of_an_environment_are_for_a_local_server(serve):
    server = serve(worlds.Guess)
    with pytest.raises(BadRequest, match="agentgym serve --env-kwargs"):
        RolloutRunner(hosting.GUESS, [server.address], env_kwargs={"x": 1})
    with RolloutRunner("agentgym/BabyAI-v0", env_kwargs={"legacy": True}) as rollout_runner:
        (one,) = rollout_runner.collect(RandomActor, [EpisodeSpec("GoToRedBall/0", 0)], horizon=1)
    assert "In front of you in this room" in one.observation
