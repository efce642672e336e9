"""GRPO's advantages, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from agentgym_env.errors import BadRequest
from agentgym_train.algorithms import GRPO, TokenBatch, make_algorithm


def batch(returns, *, trainable=None, group_size=4, masks=None) -> TokenBatch:
    """One token an episode unless `masks` says otherwise; the whole return in the last turn."""
    size = len(returns)
    mask = torch.ones(size, 1) if masks is None else torch.tensor(masks)
    return TokenBatch(
        loss_mask=mask,
        rewards=torch.stack([torch.zeros(size), torch.tensor(returns)], 1),
        turn_ends=torch.ones(size, 2, dtype=torch.long),
        trainable=torch.tensor([True] * size if trainable is None else trainable),
        group_size=group_size,
        states=torch.zeros(size, 2, dtype=torch.long),
        truncated=torch.zeros(size, dtype=torch.bool),
    )


def test_an_episode_is_measured_by_its_groups_mean_and_deviation():
    # Mean 0.5, standard deviation with n-1: sqrt(4 * 0.25 / 3) = 0.57735.
    found = GRPO().advantages(batch([1.0, 0.0, 1.0, 0.0]))
    assert found.squeeze(1).tolist() == pytest.approx([0.8659, -0.8659, 0.8659, -0.8659], abs=1e-4)


def test_without_scaling_the_advantage_is_the_distance_to_the_mean():
    found = GRPO(scale=False).advantages(batch([1.0, 0.0, 0.0, 0.0]))
    assert found.squeeze(1).tolist() == [0.75, -0.25, -0.25, -0.25]


def test_groups_do_not_mix():
    found = GRPO(scale=False).advantages(batch([1.0, 0.0, 5.0, 5.0], group_size=2))
    assert found.squeeze(1).tolist() == [0.5, -0.5, 0.0, 0.0]


def test_a_group_of_equals_teaches_nothing():
    assert not GRPO().advantages(batch([1.0] * 4)).any()


def test_a_lost_episode_is_in_no_baseline_and_gets_no_advantage():
    # Without the lost one: returns 1, 0, 0, mean 1/3.
    lost = batch([1.0, 0.0, 0.0, 0.0], trainable=[True, True, True, False])
    found = GRPO(scale=False).advantages(lost).squeeze(1).tolist()
    assert found == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0.0])


def test_a_single_episode_that_was_not_lost_has_nothing_to_be_compared_with():
    alone = batch([1.0, 0.0, 0.0, 0.0], trainable=[True, False, False, False])
    assert not GRPO().advantages(alone).any()


def test_advantages_stand_on_sampled_tokens_alone():
    masks = [[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    found = GRPO(scale=False).advantages(batch([1.0, 0.0], group_size=2, masks=masks))
    assert found.tolist() == [[0.5, 0.0, 0.5], [-0.5, 0.0, 0.0]]


def test_algorithms_are_found_by_name_or_path():
    assert make_algorithm({"type": "grpo", "scale": False}) == GRPO(scale=False)
    assert make_algorithm("agentgym_train.algorithms.grpo:GRPO") == GRPO()


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [("grop", {}, "unknown algorithm 'grop'; choose from grpo"),
     ("grpo", {"gamma": 1}, "unknown key gamma in algorithm of type grpo"),
     ("nowhere:X", {}, "cannot import"),
     ("agentgym_train.training.batch:Nothing", {}, "cannot import")],
)  # fmt: skip
def test_an_unknown_algorithm_or_field_says_what_there_is(name, values, said):
    with pytest.raises(BadRequest, match=said):
        make_algorithm({"type": name, **values})
