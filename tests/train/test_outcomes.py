"""Which endings train."""

from __future__ import annotations

import pytest

from agentgym_env.errors import TEACHES, BadRequest
from agentgym_train.config.episodes import trained_outcomes


def test_endings_may_be_left_out_one_by_one():
    assert trained_outcomes(["success", "failure"]) == {"success", "failure"}
    assert trained_outcomes(sorted(TEACHES)) == TEACHES


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["succes"], "train_outcomes has succes; choose from success, failure"),
        (["success", "environment_error"], "has environment_error; .*another outcome are lost"),
        ([], "train_outcomes is empty; choose from success"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(names, said):
    with pytest.raises(BadRequest, match=said):
        trained_outcomes(names)
