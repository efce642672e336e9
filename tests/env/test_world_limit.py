"""An environment's own limit truncates: what the class, recordings, replay and tools make of it."""

import pytest

from agentgym_env.errors import EpisodeOver, outcome_of
from agentgym_env.run_store import each_line
from agentgym_env.trajectory import Trajectory
from agentgym_env.wrappers import RecordTrajectory
from commands import agentgym
from worlds import Battery


def test_the_limit_truncates_and_the_task_terminates():
    env = Battery()
    env.reset(seed=0)
    assert [env.step("wait")[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]
    with pytest.raises(EpisodeOver):
        env.step("wait")
    env.reset(seed=0)
    assert not any(env.step("wait")[2:4] + env.step("wait")[2:4])
    *_, terminated, truncated, info = env.step("done")
    # Solved with the last of it: the end of the task counts.
    assert terminated and truncated and info["success"]
    assert outcome_of(terminated, truncated, info) == "success"


def test_a_return_before_the_limit_is_no_success():
    class Paid(Battery):
        def _step(self, action):
            return super()._step(action)[0], 1.0, False

    env = Paid()
    env.reset(seed=0)
    *_, info = [env.step("wait") for _ in range(3)][-1]
    assert not info["success"] and info["score"] == 3.0


@pytest.mark.parametrize(
    ("terminated", "truncated", "info", "outcome"),
    [
        (False, False, {}, None),
        (False, True, {"success": True}, "world_limit"),
        (True, False, {"success": True}, "success"),
        (True, True, {}, "failure"),
    ],
)
def test_how_a_step_ends_its_episode(terminated, truncated, info, outcome):
    assert outcome_of(terminated, truncated, info) == outcome


@pytest.mark.parametrize("limit", [None, 3])
def test_a_recording_of_a_limit_can_be_replayed(tmp_path, limit):
    import gymnasium

    from agentgym_env import register

    register(f"tests/Battery{limit}-v0", "worlds:Battery", max_episode_steps=limit)
    env = gymnasium.make(f"tests/Battery{limit}-v0", server="inprocess")
    with RecordTrajectory(env, tmp_path / "episodes.jsonl") as recorded:
        recorded.reset(seed=0)
        for _ in range(3):
            recorded.step("wait")
    ((_, episode),) = each_line(tmp_path / "episodes.jsonl", Trajectory)
    assert episode.outcome == ("horizon" if limit else "world_limit")
    ran = agentgym("replay", str(tmp_path / "episodes.jsonl"), "--env", "worlds:Battery")
    assert ran.status == 0, ran.out


def test_a_load_of_episodes_that_truncate_can_be_measured():
    ran = agentgym("bench", "worlds:Battery", "--seconds", "0.2", "--concurrency", "2")
    assert ran.status == 0, ran.out + ran.err
