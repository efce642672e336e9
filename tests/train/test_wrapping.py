"""Wrappers in rollouts and in training: any `gymnasium.Wrapper`, around real servers."""

from __future__ import annotations

import threading
from typing import ClassVar

import gymnasium
import pytest

import hosting
from agentgym_env.errors import BadRequest, WrapperFailed
from agentgym_env.run_store import RunStore
from agentgym_train.rollout.actors import ExpertActor
from agentgym_train.rollout.loop import EpisodeSpec
from agentgym_train.rollout.runner import RolloutRunner
from tests.train.command import Command, finish
from tests.train.test_run import write_config

TEXTCRAFT = "agentgym/TextCraft-v0"
ACTIONS = "agentgym_env.wrappers:AvailableActions"
HALF = {"wrapper": "agentgym_env.wrappers:ScaleReward", "scale": 0.5}
HERE = __name__


class Shout(gymnasium.ObservationWrapper):
    """Changes observations."""

    def observation(self, observation):
        return observation.upper()


class Twice(gymnasium.Wrapper):
    """Takes each action twice, in a thread that is not the event loop's."""

    threads: ClassVar[set[str]] = set()

    def step(self, action):
        self.threads.add(threading.current_thread().name)
        first = self.env.step("inventory")
        second = self.env.step(action)
        return second[0], first[1] + second[1], *second[2:4], {"turns": 2}


class Bad(gymnasium.Wrapper):
    """Raises, or gives what is not a step."""

    def __init__(self, env, how):
        super().__init__(env)
        self.how = how
        if how == "construct":
            raise KeyError("no")

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        if self.how == "raise":
            raise ZeroDivisionError("by zero")
        if self.how == "stop":
            raise StopIteration
        if self.how == "bytes":
            return b"bytes", reward, *rest
        return observation, float("nan"), *rest


def play(wrappers, count=4, horizon=20):
    with RolloutRunner(TEXTCRAFT, wrappers=wrappers) as rollout_runner:
        tasks = rollout_runner.tasks.split("train")[:count]
        specs = [EpisodeSpec(task, seed) for seed, task in enumerate(tasks)]
        return rollout_runner.collect(ExpertActor, specs, horizon)


def test_rewards_and_observations_are_what_the_wrappers_make_of_them():
    plain, wrapped = play([]), play([ACTIONS, HALF])
    for one, other in zip(plain, wrapped, strict=True):
        assert one.success and other.success and other.outcome == "success"
        assert other.reward == 0.5 * one.reward > 0 and other.score == one.score
        assert other.observation.startswith(one.observation)
        assert "Available actions:" in other.observation
        assert [turn.action for turn in other.turns] == [turn.action for turn in one.turns]
        assert "Available actions" in other.turns[0].observation or len(other.turns) == 1
        assert "Available actions" not in other.turns[-1].observation


def test_a_wrapper_may_take_several_steps_and_works_in_a_thread():
    Twice.threads.clear()
    for episode in play([f"{HERE}:Twice", f"{HERE}:Shout"]):
        assert episode.success and episode.observation.isupper()
        assert all(turn.info["turns"] == 2 for turn in episode.turns)
        assert episode.turns[-1].info["success"] and episode.turns[-1].info["score"] == 1.0
    assert all(name.startswith("wrappers") for name in Twice.threads) and Twice.threads


def test_without_wrappers_no_thread_is_used():
    with RolloutRunner(hosting.GUESS) as rollout_runner:
        rollout_runner.collect(ExpertActor, [EpisodeSpec("3", 0)], 3)
        assert not [t for t in threading.enumerate() if t.name.startswith("wrappers")]
        assert rollout_runner._wrapping is None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "raised ZeroDivisionError: by zero"),
        ("stop", "raised StopIteration"),
        ("construct", "raised KeyError"),
        ("bytes", "returned an observation of type bytes"),
        ("nan", "returned the reward nan"),
    ],
)
def test_a_wrapper_that_fails_ends_the_run_and_is_named(how, said):
    wrappers = [ACTIONS, {"wrapper": f"{HERE}:Bad", "how": how}, f"{HERE}:Shout"]
    with pytest.raises(WrapperFailed, match=said) as failed:
        play(wrappers)
    assert f"{HERE}:Bad" in str(failed.value)


def test_what_cannot_be_imported_is_rejected_before_anything_is_played():
    with pytest.raises(BadRequest, match="wrapper no_such:Wrapper cannot be imported"):
        play(["no_such:Wrapper"])
    with pytest.raises(WrapperFailed, match="ScaleReward raised TypeError"):
        play([{"wrapper": "agentgym_env.wrappers:ScaleReward", "size": 3}])


def test_an_environment_that_is_lost_under_a_wrapper_is_lost_and_no_failure_of_the_wrapper():
    with RolloutRunner(hosting.TROUBLE, wrappers=[f"{HERE}:Shout"]) as rollout_runner:
        (played,) = rollout_runner.collect(ExpertActor, [EpisodeSpec("broken", 0)], 3)
    assert (played.outcome, played.attempts) == ("environment_error", 3)
    assert "the world did not start" in played.error


@pytest.mark.slow
def test_a_run_trains_and_evaluates_in_the_wrappers_of_its_config(tmp_path):
    changes = {"steps": 1, "horizon": [2], "wrappers": [ACTIONS, HALF]}
    status, output = finish(Command("train", write_config(tmp_path, **changes)))
    assert status == 0, output
    store = RunStore.open(tmp_path / "run")
    names = {path.stem for path in (store.path / "trajectories").glob("*.jsonl")}
    assert len(names) >= 2, "training and evaluation"
    for name in names:
        played, broken = store.trajectories(name)
        assert played and not broken
        assert all("Available actions:" in episode.observation for episode in played)
    status, output = finish(Command("train", "--resume", str(store.path)))
    assert status != 0 and f"wrappers[0]='{ACTIONS}'" in output.replace("\n", "")
