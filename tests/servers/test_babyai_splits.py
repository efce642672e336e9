"""What the page of BabyAI says about worlds that are in both splits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentgym_servers.worlds.babyai.env import BabyAI

PAGE = Path(__file__).parents[2] / "docs" / "babyai.md"


def world_of(env: BabyAI, task: str) -> tuple[Any, ...]:
    """The grid, the agent and the mission at the start of a task."""
    env.reset(seed=0, options={"task": task})
    world: Any = env._world.unwrapped
    return world.grid.encode().tobytes(), tuple(world.agent_pos), world.agent_dir, world.mission


@pytest.mark.slow
def test_the_page_lists_the_test_tasks_whose_worlds_are_training_worlds():
    env = BabyAI()
    known = {hash(world_of(env, task)) for task in env.tasks.split("train")}
    found = {task for task in env.tasks.split("test") if hash(world_of(env, task)) in known}
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    listed = re.search(r"(\d+) of the 480 test tasks equal a training task .*? \((.*?)\)\.", text)
    assert listed is not None
    named = set()
    level = ""
    for part in re.split(r", and |, | and ", listed[2]):
        level, _, seed = part.rpartition("/") if "/" in part else (level, "/", part)
        named.add(f"{level}/{seed}")
    assert named == found and int(listed[1]) == len(found)
