"""What every estimator keeps to, and how one is named and set."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentgym_env.errors import BadRequest
from agentgym_train.algorithms import (
    ALGORITHMS,
    ActorCritic,
    Algorithm,
    LossSettings,
    make_algorithm,
)
from agentgym_train.algorithms.base import advantages_per_env
from tests.train.ragged import Episode, PlayedTurn, Step, cases, steps

OPTIONS = {
    "reinforce_pp": {"beta": 0.5, "gamma": 0.75},
    "ppo": {"gamma": 0.75, "lam": 0.5, "bootstrap_truncated": True},
    "turn_gae": {"bootstrap_truncated": True},
    "gigpo": {"scale": True},
}
"""Where they reach further than the defaults."""
every = [(name, {}) for name in ALGORITHMS] + list(OPTIONS.items())
every.append(("turn_returns", {"baseline": "batch"}))


def outputs(step, padding=0, more_turns=0):
    """The advantages of every estimator, and the returns of those with a critic."""
    batch = step.batch(padding, more_turns)
    for name, values in every:
        algorithm = make_algorithm({"type": name, **values})
        yield algorithm.advantages(batch)
        if isinstance(algorithm, ActorCritic):
            yield algorithm.critic_targets(batch).returns


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@cases
@given(steps())
def test_advantages_are_numbers_and_exactly_zero_where_nothing_is_trained(step):
    batch = step.batch()
    for found in outputs(step):
        assert found.shape == batch.loss_mask.shape and found.dtype == torch.float32
        assert found.isfinite().all()
        assert not found[~batch.trained].any()


@cases
@given(steps(), st.integers(1, 3), st.integers(0, 2))
def test_padding_changes_nothing(step, padding, more_turns):
    width = step.batch().loss_mask.shape[1]
    padded = outputs(step, padding, more_turns)
    for found, expected in zip(padded, outputs(step), strict=True):
        same(found[:, :width], expected)
        assert not found[:, width:].any()


@cases
@given(steps(), st.randoms(use_true_random=False))
def test_the_order_of_the_groups_changes_nothing(step, chance):
    size = step.group_size
    order = list(range(len(step.episodes) // size))
    chance.shuffle(order)
    rows = [group * size + i for group in order for i in range(size)]
    moved = Step([step.episodes[row] for row in rows], size)
    for found, expected in zip(outputs(moved), outputs(step), strict=True):
        same(found, expected[rows])


@cases
@given(steps())
def test_what_a_lost_episode_holds_changes_nothing(step):
    plain = list(outputs(step))
    for episode in step.episodes:
        if not episode.trainable:
            for turn in episode.turns:
                turn.reward += 100.0
                turn.state += 1
            episode.values = [1e6] * episode.length
            episode.logprobs = [-1e6] * episode.length
    for found, expected in zip(outputs(step), plain, strict=True):
        assert torch.equal(found, expected)


NARROW = {"epsilon": 3e-4, "epsilon_high": 4e-4}


@pytest.mark.parametrize(
    ("name", "values", "loss"),
    [
        ("grpo", {}, {}),
        ("grpo", {"average": "sequence"}, {"mean": "sequence"}),
        ("dapo", {}, {"epsilon_high": 0.28}),
        ("dr_grpo", {}, {"mean": "constant"}),
        ("gspo", {}, {"ratio": "sequence", "mean": "sequence", **NARROW}),
        ("cispo", {}, {"kind": "cispo", "epsilon_high": 5.0}),
        ("rloo", {}, {}),
        ("rloo", {"ratio": "sequence"}, {"ratio": "sequence", "mean": "episode", **NARROW}),
        ("reinforce_pp", {}, {}),
        ("reinforce_pp_baseline", {}, {}),
        ("ppo", {}, {}),
        ("turn_returns", {}, {}),
        ("turn_gae", {}, {}),
        ("gigpo", {}, {}),
    ],
)
def test_each_goes_into_the_loss_of_its_paper(name, values, loss):
    clipped = {"kind": "clip", "ratio": "token", "mean": "token", "epsilon": 0.2,
               "epsilon_high": None, "delta": None}  # fmt: skip
    assert asdict(make_algorithm({"type": name, **values}).loss) == {**clipped, **loss}


def test_those_with_a_critic_say_so():
    assert [name for name in ALGORITHMS if make_algorithm(name).needs_critic] == [
        "ppo",
        "turn_gae",
    ]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("rloo", {"ratio": "word"}, "algorithm.ratio must be one of token, sequence, got 'word'"),
        ("gigpo", {"omega": "much"}, "algorithm.omega must be a number, got 'much'"),
        ("gigpo", {"omega": -1}, "omega is at least 0, got -1"),
        ("ppo", {"lam": 1.5}, "lam is at most 1, got 1.5"),
        ("ppo", {"value_clip": 0}, "value_clip is above 0, got 0"),
        ("turn_gae", {"critic_warmup": -1}, "critic_warmup is at least 0, got -1"),
        ("reinforce_pp", {"gamma": -0.1}, "gamma is at least 0, got -0.1"),
        ("reinforce_pp", {"beta": -0.1}, "beta is at least 0, got -0.1"),
        (
            "reinforce_pp",
            {"kl": 0.1},
            "of an earlier version: kl: write `beta: VALUE` instead",
        ),
        ("turn_returns", {"gamma": 2}, "gamma is at most 1, got 2"),
        (
            "dapo",
            {"scale": True},
            "unknown key scale in algorithm of type dapo; no keys are allowed here",
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(name, values, said):
    with pytest.raises(BadRequest, match=said):
        make_algorithm({"type": name, **values})


@dataclass(frozen=True)
class Constant(Algorithm):
    """An algorithm of a user's."""

    value: float = 1.0

    def advantages(self, batch):
        return batch.trained * self.value


def test_a_users_own_algorithm_is_found_by_its_path():
    made = make_algorithm({"type": f"{__name__}:Constant", "value": 2})
    assert made.loss == LossSettings() and not made.needs_critic


@dataclass(frozen=True)
class PerEpisode(Algorithm):
    """Returns one number per episode, which would be spread over its tokens."""

    def advantages(self, batch):
        return batch.rewards.sum(1, keepdim=True)


def test_advantages_of_another_shape_are_refused_with_the_name():
    batch = Step([Episode([PlayedTurn(0, 2, 1.0)]), Episode([PlayedTurn(1, 2, 3.0)])], 2).batch()
    shape = r"are \[2, 1\], .* here \[2, 3\]"
    with pytest.raises(BadRequest, match=f"advantages of PerEpisode {shape}"):
        advantages_per_env(PerEpisode(), batch)
