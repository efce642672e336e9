"""Wrappers in rollouts and in training: any `gymnasium.Wrapper`, around real servers."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

import hosting
from agentgym_env.errors import BadRequest, WrapperFailed
from agentgym_env.launch import child_environment
from agentgym_env.run_store import RunStore
from agentgym_train.config.policy import RolloutLimits
from agentgym_train.rollout.actors import ExpertActor
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.runner import RolloutRunner
from tests.train.command import MAIN, Command, finish
from tests.train.test_run import write_config

pytestmark = pytest.mark.usefixtures("guess_server", "textcraft_server")
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
        return {
            "bytes": (b"bytes", reward, *rest),
            "nan": (observation, float("nan"), *rest),
            "four": (observation, reward, *rest[1:]),
            "none": None,
            "no reward": (observation, None, *rest),
            "no flag": (observation, reward, None, *rest[1:]),
            "no info": (observation, reward, *rest[:2], None),
            "object": (observation, reward, *rest[:2], {"x": object()}),
        }[self.how]


class Idle(gymnasium.Wrapper):
    """Gives no action."""

    def step(self, action):
        return self.env.step(None)


class Hangs(gymnasium.Wrapper):
    """Does not return while `free` is not set."""

    free = threading.Event()
    begun: ClassVar[list[str]] = []

    def step(self, action):
        self.begun.append(action)
        self.free.wait()
        return self.env.step(action)


class Counts(gymnasium.Wrapper):
    """Adds NumPy's types to the info."""

    def step(self, action):
        *most, info = self.env.step(action)
        return *most, {**info, "n": np.int64(3), "all": np.ones(2)}


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
        ("bytes", "step of wrapper .*:Bad returned an observation of type bytes; return a str"),
        ("nan", "returned the reward nan"),
        ("four", r"step of wrapper .*:Bad returned a tuple of 4; return \(observation, reward, "),
        ("none", r"step of wrapper .*:Bad returned None; return \(observation, reward, "),
        ("no reward", "step of wrapper .*:Bad returned the reward None; return a finite number"),
        ("no flag", "step of wrapper .*:Bad returned terminated None; return a bool"),
        ("no info", "step of wrapper .*:Bad returned an info of type NoneType; return a dict"),
        ("object", "returned an info that is not JSON: no JSON for object"),
    ],
)
def test_a_wrapper_that_fails_ends_the_run_and_is_named(how, said):
    wrappers = [ACTIONS, {"wrapper": f"{HERE}:Bad", "how": how}, f"{HERE}:Shout"]
    with pytest.raises(WrapperFailed, match=said) as failed:
        play(wrappers)
    assert f"{HERE}:Bad" in str(failed.value)


def test_a_wrapper_that_gives_no_action_is_named():
    with pytest.raises(
        WrapperFailed, match=r"step of wrapper .*:Idle passed an action of type None"
    ):
        play([ACTIONS, f"{HERE}:Idle", f"{HERE}:Shout"])


def test_the_info_of_a_wrapper_may_contain_numpy_types():
    (played,) = play([f"{HERE}:Counts"], count=1)
    assert {(turn.info["n"], *turn.info["all"]) for turn in played.turns} == {(3, 1.0, 1.0)}


def test_a_wrapper_that_hangs_is_named_and_its_threads_are_limited(leap_when):
    specs = [EpisodeSpec("3", seed) for seed in range(3)]
    limits = RolloutLimits(episode_timeout_s=60.0)
    before = threading.active_count()
    Hangs.begun.clear()
    with RolloutRunner(
        hosting.GUESS, wrappers=[f"{HERE}:Hangs"], limits=limits, concurrency=2
    ) as rollout_runner:
        loop = rollout_runner._runner.get_loop()
        leap_when(lambda: len(Hangs.begun) == 2, loop)
        with pytest.raises(WrapperFailed, match=r"2 calls of the wrappers .*:Hangs did not return"):
            rollout_runner.collect(ExpertActor, specs, 3)
        hung = [t for t in threading.enumerate() if t.name == "wrappers"]
        assert len(hung) == 2 and all(t.daemon for t in hung)
        Hangs.free.set()
        for thread in hung:
            thread.join(60)
        Hangs.free.clear()
        leap_when(lambda: len(Hangs.begun) == 3, loop)
        (played,) = rollout_runner.collect(ExpertActor, specs[:1], 3)
        assert played.outcome == "environment_lost" and f"{HERE}:Hangs; fix it" in played.error
        hung = [t for t in threading.enumerate() if t.name == "wrappers"]
        Hangs.free.set()
        for thread in hung:
            thread.join()
    assert threading.active_count() <= before + 2


HUNG = """
import threading, time, gymnasium, hosting
from agentgym_train.rollout.actors import ExpertActor
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.config.policy import RolloutLimits
from agentgym_train.rollout.runner import RolloutRunner

class Hangs(gymnasium.Wrapper):
    def step(self, action):
        print("hangs")
        real = time.monotonic
        time.monotonic = lambda: real() + 100
        self.unwrapped._loop.call_soon_threadsafe(lambda: None)
        threading.Event().wait()

limits = RolloutLimits(episode_timeout_s=60.0)
with RolloutRunner(hosting.GUESS, wrappers=["__main__:Hangs"], limits=limits) as runner:
    print(runner.collect(ExpertActor, [EpisodeSpec("3", 0)], 3)[0].outcome)
"""


@pytest.mark.slow
def test_a_hung_wrapper_does_not_keep_the_process():
    ran = subprocess.run(
        [sys.executable, "-c", HUNG], env=child_environment(), capture_output=True, timeout=240
    )
    assert ran.stdout.split() == [b"hangs", b"environment_lost"], ran.stderr.decode()
    assert ran.returncode == 0


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
@pytest.mark.parametrize("how", ["two processes", "max_policy_age"])
def test_wrappers_apply_however_the_episodes_are_collected(how, tmp_path):
    changes = {
        "two processes": {},
        "max_policy_age": {"max_policy_age": 1},
    }[how]
    config = write_config(
        tmp_path, steps=2, horizon=[2], eval={"before": False, "after": False},
        wrappers=[ACTIONS, {"wrapper": "agentgym_env.wrappers:StepPenalty", "penalty": 1.0}],
        **changes,
    )  # fmt: skip
    if how == "two processes":
        words = [sys.executable, "-c", MAIN, "train", config, "--num-processes", 2]
        ran = subprocess.run([*map(str, words)], env=child_environment(), capture_output=True)
        status, output = ran.returncode, ran.stderr.decode()
    else:
        status, output = finish(Command("train", config))
    assert status == 0, output
    played, _ = RunStore.open(tmp_path / "run").trajectories("train")
    assert len(played) == 8
    for episode in played:
        assert "Available actions:" in episode.observation
        assert episode.reward <= episode.score - len(episode.turns)


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
    assert status == 0 and "is complete" in output, "a wrapper of the SDK needs no --trust"
