"""CONTRIBUTING.md names the files of typical changes, and they are few."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
MAX_FILES = {
    "an algorithm": 2, "a horizon schedule": 1, "an environment": 2, "a reward scale": 1,
    "an engine": 2, "a policy for evaluation": 2, "a column in the viewer": 2,
    "an option of a command": 1, "a retry rule": 1, "a chat-template argument": 1, "a metric": 1,
    "an HTTP route": 4,
}  # fmt: skip
MAX_STEP_FILES = 22


@pytest.fixture
def house(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    sys.modules.pop("house", None)
    import house

    return house


def test_typical_changes_touch_few_files_that_exist(house):
    changes = house.typical_changes()
    assert {change: len(files) for change, files in changes.items()} == MAX_FILES


@pytest.mark.slow
def test_a_step_of_rl_runs_through_few_files(house, monkeypatch):
    from agentgym_train.trainers.trainer import RLTrainer

    monkeypatch.chdir(TOOLS.parent)
    monkeypatch.setattr(RLTrainer, "training_step", RLTrainer.training_step)
    files = house.step_files()
    assert "trainers/trainer.py" in files and "rollout/loop.py" in files
    assert len(files) <= MAX_STEP_FILES, files
