"""An environment whose module fails on import: a task is listed twice."""

from __future__ import annotations

from agentgym_env import TaskSet
from faulty import Sound


class ListedTwice(Sound):
    tasks = TaskSet({"train": ["a", "b"], "test": ["a"]})
