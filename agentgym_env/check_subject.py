"""What the conformance rules look at: one environment, a sample of its tasks, episodes to play."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentgym_env.registration import env_class, find
from agentgym_env.text_env import TextEnv
from agentgym_env.transcript import Script, write_script

_TURNS = 12


class RuleBroken(Exception):
    """The environment does not keep a promise; the message says how."""


class NotApplicable(Exception):
    """The rule is about something this environment does not have."""


@dataclass
class Subject:
    """The environment under test."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tasks_per_split: int = 6
    sessions: int = 64

    @property
    def entry_point(self) -> str:
        """`module:Class`."""
        return find(self.env_id).entry_point

    def make(self) -> TextEnv:
        """A fresh environment."""
        return env_class(self.env_id)(**self.env_kwargs)

    @cached_property
    def sample(self) -> list[str]:
        """Tasks of every split, evenly spaced."""
        chosen: list[str] = []
        for ids in self.make().tasks.splits.values():
            count = min(len(ids), self.tasks_per_split)
            chosen += [ids[i * len(ids) // count] for i in range(count)]
        return chosen

    @cached_property
    def scripts(self) -> list[Script]:
        """One episode for each task of the sample."""
        env = self.make()
        scripts = [write_script(env, task, seed, _TURNS) for seed, task in enumerate(self.sample)]
        env.close()
        return scripts
