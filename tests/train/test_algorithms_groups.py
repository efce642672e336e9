"""GRPO's kin, RLOO and REINFORCE++ with baseline against slow references and by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from agentgym_train.algorithms import make_algorithm
from tests.train.ragged import (
    Episode,
    PlayedTurn,
    Step,
    cases,
    close,
    deviation,
    each_token,
    mean,
    steps,
    whitened,
)


def advantages(name, step, **values):
    return make_algorithm({"type": name, **values}).advantages(step.batch())


def one_turn(*returns, group_size):
    return Step([Episode([PlayedTurn(0, 1, r)]) for r in returns], group_size)


def grpo_reference(step, *, scale):
    numbers = {}
    for group in step.groups():
        returns = [e.ret for e in group]
        for episode in group:
            if len(group) > 1:
                distance = episode.ret - mean(returns)
                numbers[id(episode)] = distance / (deviation(returns) + 1e-4 if scale else 1.0)
    return each_token(step, numbers)


@cases
@given(steps())
def test_grpo_is_the_distance_to_the_group_over_its_deviation(step):
    close(advantages("grpo", step), step, grpo_reference(step, scale=True))
    close(advantages("dr_grpo", step), step, grpo_reference(step, scale=False))


@cases
@given(steps())
def test_rloo_is_the_distance_to_the_mean_of_the_others(step):
    numbers = {}
    for group in step.groups():
        for episode in group:
            others = [e.ret for e in group if e is not episode]
            if others:
                numbers[id(episode)] = episode.ret - mean(others)
    close(advantages("rloo", step), step, each_token(step, numbers))


@cases
@given(steps())
def test_reinforce_pp_with_baseline_whitens_the_distances_to_the_groups(step):
    compared = []
    for group in step.groups():
        middle = mean([e.ret for e in group] or [0.0])
        if len(group) > 1:
            compared += [(e, [e.ret - middle] * len(e.sampled)) for e in group]
    white = whitened([numbers for _, numbers in compared])
    by_id = {id(e): numbers for (e, _), numbers in zip(compared, white, strict=True)}
    expected = [by_id.get(id(e), [0.0] * len(e.sampled)) for e in step.episodes]
    close(advantages("reinforce_pp_baseline", step), step, expected)


def test_rloo_by_hand():
    # Others of 3: (0 + 0) / 2 = 0; of 0: (3 + 0) / 2 = 1.5.
    found = advantages("rloo", one_turn(3.0, 0.0, 0.0, group_size=3))
    assert found.squeeze(1).tolist() == [3.0, -1.5, -1.5]


def test_rloo_leaves_a_lost_episode_out_of_the_others():
    step = one_turn(3.0, 0.0, 9.0, group_size=3)
    step.episodes[2].trainable = False
    assert advantages("rloo", step).squeeze(1).tolist() == [3.0, -3.0, 0.0]


def test_reinforce_pp_with_baseline_by_hand():
    # Distances 0.5, -0.5, 1, -1: their mean is 0, their variance 2.5 / 3.
    found = advantages("reinforce_pp_baseline", one_turn(1.0, 0.0, 7.0, 5.0, group_size=2))
    scale = (3 / 2.5) ** 0.5
    expected = [0.5 * scale, -0.5 * scale, scale, -scale]
    assert found.squeeze(1).tolist() == pytest.approx(expected)


def test_an_episode_that_sampled_nothing_still_counts_in_its_group():
    step = Step([Episode([PlayedTurn(0, 2, 1.0)]), Episode([PlayedTurn(1, 0, 3.0)])], 2)
    assert advantages("dr_grpo", step).tolist() == [[-1.0, -1.0], [0.0, 0.0]]


@pytest.mark.parametrize("name", ["dapo", "gspo", "cispo"])
def test_the_variants_differ_from_grpo_in_the_loss_alone(name):
    step = one_turn(1.0, 0.0, 0.25, group_size=3)
    assert torch.equal(advantages(name, step), advantages("grpo", step))
