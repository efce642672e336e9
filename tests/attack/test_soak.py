"""Kills and stops of servers and workers: every step is the right one, and every port is free."""

from __future__ import annotations

import sys

import pytest

from soaking import Servers, soak

pytestmark = pytest.mark.slow
STEPS = 20_000


def test_steps_through_kills_and_stops_are_those_of_the_same_world_in_process():
    told, faults, taken = soak(STEPS, 16, Servers(count=2, workers=2))
    sys.stdout.write(
        f"{told.steps:,} steps of {told.episodes:,} episodes, {sum(faults.values())} faults "
        f"{dict(faults)}, {dict(told.lost)} lost: {len(told.mismatches)} mismatches\n"
    )
    assert told.mismatches == [] and taken == []
    assert told.solved > 0
