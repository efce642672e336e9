"""The critic's loss."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_train.algorithms import CriticTargets, value_loss


def test_the_loss_is_half_the_mean_square_of_the_worse_of_clipped_and_plain():
    # From 0 to return 1: a value of 0.5 clips to 0.2, the worse; one of 3 is worse unclipped.
    new, old = torch.tensor([[0.5, 3.0]]), torch.zeros(1, 2)
    targets = CriticTargets(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
    loss = value_loss(new, old, targets, clip=0.2, count=2)
    assert loss.item() == pytest.approx(0.5 * (0.8**2 + 2.0**2) / 2)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_the_gradient_does_not_depend_on_how_the_step_is_cut(seed, passes):
    draws = torch.Generator().manual_seed(seed)
    old, returns = (torch.randn(5, 4, generator=draws) for _ in range(2))
    mask = torch.rand(5, 4, generator=draws) < 0.5
    targets = CriticTargets(returns, mask)
    count = mask.sum().clamp(min=1)

    def gradient(cuts):
        new = (old + 0.3).requires_grad_()
        for cut in cuts:
            part = CriticTargets(returns[cut], mask[cut])
            value_loss(new[cut], old[cut], part, clip=0.2, count=count).backward()
        return new.grad

    whole = gradient([slice(None)])
    torch.testing.assert_close(gradient(torch.arange(5).chunk(passes)), whole)
    assert not whole[~mask].any()
    assert targets.mask is mask


def test_a_place_that_is_not_learned_may_hold_anything():
    new = torch.tensor([[1.0, math.nan, math.inf]], requires_grad=True)
    targets = CriticTargets(torch.zeros(1, 3), torch.tensor([[True, False, False]]))
    value_loss(new, torch.zeros(1, 3), targets, clip=0.2, count=1).backward()
    assert new.grad.tolist() == [[1.0, 0.0, 0.0]]
