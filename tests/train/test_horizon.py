"""Horizon schedules."""

from __future__ import annotations

import pytest

from agentgym_env.errors import BadRequest
from agentgym_train.horizon import Fixed, ScalingInterStepwise, make_horizon


def test_scaling_inter_moves_on_multiples_and_stays_at_the_last_stage():
    horizon = ScalingInterStepwise((10, 20, 30), every=100)
    assert [horizon(s) for s in (0, 99, 100, 199, 200, 10_000)] == [10, 10, 20, 20, 30, 30]


def test_one_round_is_a_fixed_horizon():
    horizon = make_horizon((7,), every=100)
    assert isinstance(horizon, Fixed)
    assert {horizon(s) for s in (0, 500)} == {7}


@pytest.mark.parametrize(
    ("rounds", "every", "said"),
    [((), 1, "at least 1 turn"), ((0, 5), 1, "at least 1 turn"), ((5, 5), 1, "rises"),
     ((9, 5), 1, "rises"), ((5, 9), 0, "at least 1")],
)  # fmt: skip
def test_a_schedule_that_makes_no_sense_is_refused(rounds, every, said):
    with pytest.raises(BadRequest, match=said):
        ScalingInterStepwise(rounds, every)
