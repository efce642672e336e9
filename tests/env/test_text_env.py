"""TextEnv: what the base class promises for every author."""

from typing import ClassVar

import gymnasium
import pytest
from gymnasium.utils import seeding

from agentgym_env.errors import (
    BadRequest,
    EnvironmentFault,
    EpisodeOver,
    UnknownSplit,
    UnknownTask,
)
from worlds import Guess, Trouble


def test_the_same_seed_and_task_give_the_same_episode():
    first, second = Guess(), Guess()
    assert first.reset(seed=4) == second.reset(seed=4)
    assert first.reset() == second.reset()
    observation, info = first.reset()
    options = {"task": info["task"]}
    assert second.reset(seed=info["seed"], options=options)[0] == observation


def test_an_unseeded_reset_draws_its_seed_from_the_raw_stream():
    env = Guess()
    env.reset(seed=123)
    generator, _ = seeding.np_random(123)
    assert env.reset()[1]["seed"] == int(generator.bit_generator.random_raw()) >> 12


def test_the_split_named_is_drawn_from():
    env = Guess()
    assert {env.reset(seed=s)[1]["task"] for s in range(60)} == set("123456")
    assert {env.reset(seed=s, options={"split": "test"})[1]["task"] for s in range(40)} == set(
        "789"
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"task": "x"}, UnknownTask),
        ({"split": "dev"}, UnknownSplit),
        ({"task": "1", "split": "test"}, BadRequest),
        ({"taks": "1"}, BadRequest),
    ],
)
def test_reset_options_that_make_no_sense_are_refused(options, error):
    with pytest.raises(error):
        Guess().reset(options=options)


def test_solving_the_task_ends_the_episode():
    env = Guess()
    env.reset(seed=0, options={"task": "7"})
    assert env.step("8")[1:4] == (0.0, False, False)
    observation, reward, terminated, truncated, info = env.step(" 7 ")
    assert (observation, reward, terminated, truncated) == ("Right!", 1.0, True, False)
    assert (info["turn"], info["success"], info["score"]) == (2, True, 1.0)
    with pytest.raises(EpisodeOver, match="the episode has ended"):
        env.step("7")


def test_a_step_before_the_first_reset_is_refused():
    with pytest.raises(EpisodeOver, match="no episode was started"):
        Guess().step("1")


def test_an_action_that_is_no_text_is_refused():
    env = Guess()
    env.reset(seed=0)
    with pytest.raises(BadRequest, match="got int"):
        env.step(3)


def test_a_reward_that_is_not_finite_is_the_environments_fault():
    env = Trouble()
    env.reset(seed=0, options={"task": "fine"})
    with pytest.raises(EnvironmentFault, match="reward nan"):
        env.step("nan")


class Detailed(Guess):
    told: ClassVar[dict[str, object]] = {}

    def details(self):
        return self.told


def test_details_stand_beside_what_every_info_has(monkeypatch):
    env = Detailed()
    monkeypatch.setattr(Detailed, "told", {"closeness": 0.5, "hint": "up", "turn": 99})
    info = env.reset(seed=0, options={"task": "3"})[1]
    assert info == {
        "closeness": 0.5, "hint": "up", "task": "3", "turn": 0, "success": False, "score": 0.0,
        "seed": 0,
    }  # fmt: skip
    monkeypatch.setattr(Detailed, "told", {})
    assert "hint" not in env.step("4")[4]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "the detail 'closeness' nan"),
        (float("inf"), "the detail 'closeness' inf"),
        (None, "the detail 'closeness' as NoneType"),
        ([1], "the detail 'closeness' as list"),
    ],
)
def test_a_detail_is_a_text_or_a_finite_number(monkeypatch, value, message):
    monkeypatch.setattr(Detailed, "told", {"closeness": value})
    with pytest.raises(EnvironmentFault, match=message):
        Detailed().reset(seed=0)


def test_a_class_has_an_expert_where_it_writes_one():
    assert Guess().has_expert() and not Trouble().has_expert()


def test_lone_surrogates_never_reach_the_world_nor_leave_it():
    env = Guess()
    env.reset(seed=0)
    assert env.step("\ud800")[0] == repr("\ufffd") + " is wrong."


def test_asking_the_expert_twice_gives_the_same_answer():
    env = Guess()
    env.reset(seed=0, options={"task": "3"})
    assert env.expert_action() == env.expert_action() == "3"
    env.step("4")
    assert env.expert_action() is None


def test_ansi_rendering_shows_the_last_observation():
    env = Guess(render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation and Guess().render() is None
    with pytest.raises(BadRequest, match="rgb_array"):
        Guess(render_mode="rgb_array")


def test_it_is_a_gymnasium_environment():
    assert isinstance(Guess(), gymnasium.Env)
