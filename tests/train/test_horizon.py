"""Horizon schedules: hand-worked turns, and what holds for every schedule there can be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_train.rollout.horizon import (
    SCHEDULES,
    Adaptive,
    Fixed,
    Horizon,
    Linear,
    ScalingInterStepwise,
    make_horizon,
)


def test_scaling_inter_moves_on_multiples_and_stays_at_the_last_stage():
    horizon = ScalingInterStepwise((10, 20, 30), every=100)
    assert [horizon(s) for s in (0, 99, 100, 199, 200, 10_000)] == [10, 10, 20, 20, 30, 30]


def test_linear_climbs_from_number_to_number_and_stays_at_the_last():
    # 2 + 4t/4 turns for four steps, then 6 + 3t/4: 6, 6.75, 7.5, 8.25.
    horizon = Linear((2, 6, 9), every=4)
    assert [horizon(s) for s in range(10)] == [2, 3, 4, 5, 6, 6, 7, 8, 9, 9]
    # 3 turns over 100 steps: one more at 34, 67 and 100.
    slow = Linear((5, 8), every=100)
    assert [slow(s) for s in (33, 34, 66, 67, 99, 100)] == [5, 6, 6, 7, 7, 8]


def test_one_number_is_a_fixed_horizon_and_several_are_stages():
    assert make_horizon(7) == make_horizon([7]) == make_horizon({"turns": 7}) == Fixed(7)
    assert make_horizon([7, 9]) == ScalingInterStepwise((7, 9), 100)
    assert make_horizon({"turns": [7, 9], "every": 3}) == ScalingInterStepwise((7, 9), 3)
    setting = {"turns": [7, 9], "every": 3}
    assert make_horizon({"type": "linear", **setting}) == Linear((7, 9), 3)
    adaptive = make_horizon({"type": "adaptive", "threshold": 0.5, **setting})
    assert adaptive == Adaptive((7, 9), 3, 0.5)
    assert {Fixed(7)(s) for s in (0, 500)} == {7}


def test_adaptive_grows_when_the_window_reaches_the_threshold_and_says_so():
    horizon = Adaptive((4, 8, 12), threshold=0.5, patience=9, window=2)
    played, said = [], []
    # Means of two: .4 no; .5 yes. Then .8 alone is no window; .45, .15 no; .5 yes.
    for step, success in enumerate([0.3, 0.5, 0.5, 0.8, 0.1, 0.2, 0.8, 1.0, 1.0]):
        played.append(horizon(step))
        said.append(horizon.observe(step, success))
    assert played == [4, 4, 4, 8, 8, 8, 8, 12, 12]
    assert [step for step, reason in enumerate(said) if reason] == [2, 6]
    assert said[2] == "success 0.50 over 2 steps reached 0.5"
    assert [(g.step, g.turns) for g in horizon.growths] == [(2, 8), (6, 12)]


def test_adaptive_grows_when_success_has_stopped_rising_and_says_so():
    horizon = Adaptive((4, 8), threshold=0.9, patience=3, window=1)
    # .2 and .3 rise; .305 is no rise of a hundredth, nor are .3 and .1: three in a row.
    said = [horizon.observe(s, x) for s, x in enumerate([0.2, 0.3, 0.305, 0.3, 0.1])]
    assert said == [None] * 4 + ["success 0.10 has not improved on 0.30 for 3 steps"]
    assert horizon(5) == 8


def test_a_rise_starts_the_patience_anew():
    horizon = Adaptive((4, 8), threshold=0.9, patience=2, window=1)
    assert not any(horizon.observe(s, x) for s, x in enumerate([0.2, 0.2, 0.3, 0.3, 0.4, 0.4]))
    assert horizon.observe(6, 0.4)


def test_a_stage_lasts_its_fewest_steps_however_well_it_goes():
    horizon = Adaptive((4, 8), every=5, threshold=0.5, window=1)
    assert [bool(horizon.observe(s, 1.0)) for s in range(5)] == [False] * 4 + [True]


def test_a_step_whose_episodes_were_all_lost_tells_nothing():
    horizon = Adaptive((4, 8), threshold=0.5, patience=1, window=1)
    assert horizon.observe(0, nan) is None
    assert horizon.state_dict() == Adaptive((4, 8), threshold=0.5).state_dict()


RISING = st.lists(st.integers(1, 60), min_size=2, max_size=5, unique=True).map(sorted)
SUCCESSES = st.lists(st.floats(0, 1), max_size=60)
SETTINGS = st.fixed_dictionaries(
    {
        "every": st.integers(1, 8),
        "threshold": st.floats(0.05, 1),
        "patience": st.integers(1, 8),
        "window": st.integers(1, 5),
    }
)


def play(horizon, successes, first=0):
    """The horizon of each step, the schedule being told each step's success."""
    turns = []
    for step, success in enumerate(successes, first):
        turns.append(horizon(step))
        assert horizon(step) == turns[-1], "to read is not to move"
        horizon.observe(step, success)
    return turns


def schedule(name, turns, settings):
    own = settings if name == "adaptive" else {"every": settings["every"]}
    return make_horizon({"type": name, "turns": turns, **own})


@given(RISING, SETTINGS, SUCCESSES, st.sampled_from(["stepwise", "linear", "adaptive"]))
def test_no_schedule_shrinks_or_leaves_its_numbers(rounds, settings, successes, name):
    turns = play(schedule(name, rounds, settings), successes)
    assert turns == sorted(turns)
    assert all(rounds[0] <= h <= rounds[-1] for h in turns)
    if name != "linear":
        assert set(turns) <= set(rounds)


@given(RISING, SETTINGS, SUCCESSES)
def test_adaptive_stays_in_each_stage_as_long_as_it_must(rounds, settings, successes):
    turns = play(schedule("adaptive", rounds, settings), successes)
    for stage in set(turns) - {turns[-1] if turns else 0}:
        assert turns.count(stage) >= max(settings["every"], settings["window"])


@given(RISING, SETTINGS, SUCCESSES, st.sampled_from(["stepwise", "linear", "adaptive"]), st.data())
def test_a_schedule_resumed_at_any_step_is_the_unbroken_one(
    rounds, settings, successes, name, data
):
    cut = data.draw(st.integers(0, len(successes)))
    unbroken = schedule(name, rounds, settings)
    expected = play(unbroken, successes)
    killed = schedule(name, rounds, settings)
    before = play(killed, successes[:cut])
    resumed = schedule(name, rounds, settings)
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    assert before + play(resumed, successes[cut:], cut) == expected
    assert resumed.state_dict() == unbroken.state_dict()


@pytest.mark.parametrize(
    ("rounds", "every", "said"),
    [((), 1, "has no number"), ((0, 5), 1, r"turns\[0\] is at least 1, got 0"),
     ((5, 5), 1, "must increase"), ((9, 5), 1, "must increase"),
     ((5, 9), 0, "every is at least 1, got 0")],
)  # fmt: skip
@pytest.mark.parametrize("kind", [ScalingInterStepwise, Linear, Adaptive])
def test_a_schedule_that_makes_no_sense_is_refused(kind, rounds, every, said):
    with pytest.raises(BadRequest, match=said):
        kind(rounds, every)


@pytest.mark.parametrize(
    ("rounds", "schedule", "settings", "said"),
    [
        ([5, 9], "fixed", {}, r"a fixed horizon must be one number, got \[5, 9\]"),
        ([5], "linear", {}, r"a linear horizon needs at least two numbers, got \[5\]"),
        ([5], "adaptive", {}, "an adaptive horizon needs at least two numbers"),
        ([5, 9], "adaptive", {"threshold": 0.0}, "threshold is above 0, got 0.0"),
        ([5, 9], "adaptive", {"threshold": 1.1}, "threshold is at most 1, got 1.1"),
        ([5, 9], "adaptive", {"patience": 0}, "patience is at least 1, got 0"),
        ([5, 9], "adaptive", {"window": 0}, "window is at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(rounds, schedule, settings, said):
    with pytest.raises(BadRequest, match=said):
        make_horizon({"type": schedule, "turns": rounds, **settings})


def test_the_state_of_another_schedule_is_refused():
    with pytest.raises(BadRequest, match=r"has the stages \[4, 8\], the config has \[4, 9\]"):
        Adaptive((4, 9)).load_state_dict(Adaptive((4, 8)).state_dict())


def test_a_schedule_that_cannot_be_called_is_named():
    with pytest.raises(
        ConfigError, match="the horizon schedule os:path is called with turns: TypeError: 'module'"
    ):
        make_horizon({"type": "os:path", "turns": 5})
    with pytest.raises(ConfigError, match=r"is called with turns, every=\.\.\.: .*'every'"):
        make_horizon({"type": "builtins:sum", "turns": [5], "every": 3})
    with pytest.raises(ConfigError, match=r"unknown key every in horizon of type fixed"):
        make_horizon({"type": "fixed", "turns": 5, "every": 3})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"floor": "x"}, "is called with turns, floor=.*TypeError"),
        ({"fails": True}, "the horizon Halves failed at step 0: TypeError: no number"),
        ({"fails": 0.5}, "a horizon must be at least 1 turn, got 0.5 at step 0"),
    ],
)
def test_a_schedule_of_the_user_that_fails_is_rejected_when_it_is_made(fields, said):
    with pytest.raises(ConfigError, match=said):
        make_horizon({"type": f"{__name__}:Halves", "turns": [8, 2], **fields})


def test_a_schedule_of_the_user_is_called_with_the_turns_and_its_own_fields():
    name = f"{__name__}:Halves"
    assert make_horizon({"type": name, "turns": [8, 2], "floor": 3})(5) == 11


class Halves:
    def __init__(self, turns, floor=1, fails=False):
        self.total = sum(turns) // 2 + 2 * floor
        self.fails = fails

    def __call__(self, step):
        if self.fails is True:
            raise TypeError("no number")
        return self.fails or self.total


@dataclass
class Peak(Horizon):
    """A schedule that has no `every`."""

    turns: list[int]
    height: int = 1

    def __call__(self, step):
        return self.height * max(self.turns)


def test_a_new_schedule_gets_only_the_fields_that_it_has(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "peak", Peak)
    assert make_horizon({"type": "peak", "turns": [2, 4], "height": 3})(0) == 12
