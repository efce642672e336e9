"""Wrappers for text environments: ours, Gymnasium's, and those that a config names."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TransformObservation, TransformReward

from agentgym_env.errors import BadRequest, EnvironmentFault
from agentgym_env.registry import env_class
from agentgym_env.run_store import RunStore, read_lines
from agentgym_env.trajectory import Trajectory
from agentgym_env.wrappers import (
    AvailableActions,
    EndAfterInvalid,
    RecordTrajectory,
    ScaleReward,
    StepPenalty,
    TruncateObservation,
    named_wrappers,
    wrap,
)
from commands import agentgym
from hosting import GUESS
from worlds import Guess, Trouble

TEXTCRAFT = "agentgym/TextCraft-v0"


@pytest.fixture(params=["inprocess", "server"])
def server(request, serve):
    """The environment in this process, and behind a server."""
    return serve().address if request.param == "server" else "inprocess"


def test_rewards_are_scaled_and_penalised_on_every_road(server):
    env = StepPenalty(ScaleReward(gymnasium.make(GUESS, server=server), 0.5), 0.1)
    _, info = env.reset(seed=0, options={"task": "3"})
    assert info["task"] == "3"
    assert env.step("1")[1] == pytest.approx(-0.1)
    _, reward, terminated, _, info = env.step("3")
    assert (reward, terminated) == (pytest.approx(0.5 - 0.1), True)
    assert info["success"] and info["score"] == 1.0, "the environment's own"
    env.close()


def test_gymnasiums_own_transforms_fit_texts():
    env = TransformReward(Guess(), lambda reward: float(reward) - 1)
    env = TransformObservation(env, str.upper, None)
    assert env.reset(seed=0)[0].isupper()
    assert env.step("nothing")[1] == -1.0


def test_a_truncated_observation_says_so_and_fits_its_space():
    class Long(Guess):
        def _reset(self, task):
            super()._reset(task)
            return "x" * 1000

    env = TruncateObservation(Long(), 60)
    observation, _ = env.reset(seed=0, options={"task": "3"})
    assert len(observation) == 60 and observation in env.observation_space
    assert observation.endswith("\n[1000 characters, cut]")
    assert env.step("1")[0] == "'1' is wrong."
    assert len(TruncateObservation(Long(), 5).reset(seed=0)[0]) == 5
    with pytest.raises(BadRequest, match="at least 1"):
        TruncateObservation(Guess(), 0)


def test_available_actions_are_appended_until_the_end(server):
    env = AvailableActions(gymnasium.make(GUESS, server=server), 2)
    env.reset(seed=0, options={"task": "3"})
    observation = env.step("1")[0]
    first, second = Guess().available_actions()[:2]
    assert observation.endswith(f"\n\nAvailable actions:\n{first}\n{second}")
    assert "Available actions" not in env.step("3")[0]
    env.close()
    silent = AvailableActions(Trouble())
    assert "Available actions" not in silent.reset(seed=0, options={"task": "fine"})[0]


@pytest.mark.parametrize("is_served", [False, True])
def test_invalid_actions_in_a_row_end_the_episode(is_served, serve):
    server = "inprocess"
    if is_served:
        server = serve(env_class(TEXTCRAFT), env_id=TEXTCRAFT).address
    env = EndAfterInvalid(gymnasium.make(TEXTCRAFT, server=server), 2)
    for _ in range(2):  # a new episode begins at none
        env.reset(seed=0)
        ends = [env.step(action)[2:4] for action in ("no", "inventory", "no", "no")]
        assert ends == [(False, False)] * 3 + [(True, False)]
        env.reset(seed=0)
        env.step("no")
    env.close()
    untold = EndAfterInvalid(Trouble(), 1)
    untold.reset(seed=0, options={"task": "fine"})
    assert untold.step("nothing")[2] is False
    with pytest.raises(BadRequest, match="count is at least 1, got 0"):
        EndAfterInvalid(Trouble(), 0)


def test_a_recorded_trajectory_can_be_replayed(tmp_path):
    path = tmp_path / "episodes" / "mine.jsonl"
    env = RecordTrajectory(gymnasium.make(GUESS, server="inprocess"), path, policy="me")
    for task, action in (("3", "3"), ("4", "nothing")):
        env.reset(seed=7, options={"task": task})
        env.step(action)
    env.reset(seed=7)
    env.close()
    (played,), broken = read_lines(path, Trajectory)
    assert broken == []
    assert (played.env, played.task, played.seed, played.policy) == (GUESS, "3", 7, "me")
    assert (played.outcome, played.success, played.reward) == ("success", True, 1.0)
    assert played.instruction == Guess.instruction
    ran = agentgym("replay", str(path), "--env", "worlds:Guess", "--trust")
    assert ran.status == 0 and "1 of 1 episodes agree" in ran.out


def test_an_episode_that_is_lost_is_recorded_as_lost(tmp_path):
    class Broken(Guess):
        def _step(self, action):
            raise EnvironmentFault("it broke")

    env = RecordTrajectory(Broken(), tmp_path / "mine.jsonl")
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault):
        env.step("1")
    (played,), _ = read_lines(env.path, Trajectory)
    assert (played.outcome, played.error, played.turns) == ("environment_error", "it broke", [])


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
def test_gymnasiums_checker_passes_for_each(tmp_path):
    for wrapper in (
        ScaleReward(Guess(), 2.0),
        StepPenalty(Guess(), 0.1),
        TruncateObservation(Guess(), 50),
        AvailableActions(Guess()),
        RecordTrajectory(Guess(), tmp_path / "x.jsonl"),
    ):
        check_env(wrapper, skip_render_check=True)


def test_a_config_names_wrappers_and_their_arguments():
    specs = [
        "agentgym_env.wrappers:AvailableActions",
        {"wrapper": "agentgym_env.wrappers:ScaleReward", "scale": 3},
        {"wrapper": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 1},
    ]
    env = wrap(Guess(), specs)
    assert "Available actions" in env.reset(seed=0, options={"task": "3"})[0]
    assert env.step("3")[1:4] == (3.0, True, True)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("ScaleReward", "must look like module:Class"),
        ({"scale": 3}, "a wrapper is `module:Class`"),
        ({"wrapper": 3}, "a wrapper is `module:Class`"),
        ("no_such_module:Wrapper", "wrapper no_such_module:Wrapper cannot be imported"),
        ("agentgym_env.wrappers:Missing", "has no 'Missing'"),
        ("agentgym_env.trust:KEYS", "is not a class"),
    ],
)
def test_a_wrapper_that_cannot_be_is_rejected_by_name(spec, said):
    with pytest.raises(BadRequest, match=said):
        [named.load() for named in named_wrappers([spec])]


@pytest.mark.parametrize("module", ["agentgym_env.wrappers", "foreign"])
def test_replay_applies_the_wrappers_of_the_run_if_it_is_trusted(tmp_path, monkeypatch, module):
    (tmp_path / "foreign.py").write_text("from agentgym_env.wrappers import AvailableActions\n")
    monkeypatch.syspath_prepend(tmp_path)
    wrappers = [f"{module}:AvailableActions"]
    store = RunStore.create(tmp_path / "run", {"config": {"wrappers": wrappers}})
    env = wrap(gymnasium.make(GUESS, server="inprocess"), wrappers)
    env = RecordTrajectory(env, store.path / "trajectories" / "mine.jsonl")
    env.reset(seed=7, options={"task": "3"})
    env.step("1")
    env.step("3")
    words = ("replay", "run", "--env", "worlds:Guess")
    if module == "foreign":
        refused = agentgym(*words, folder=tmp_path)
        assert refused.status == 2 and "wrappers[0]='foreign:AvailableActions'" in refused.err
        words += ("--trust",)
    ran = agentgym(*words, folder=tmp_path)
    assert ran.status == 0 and "1 of 1 episodes agree" in ran.out
