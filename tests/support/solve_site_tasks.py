"""Solves tasks on sites of our own with BrowserGym's own, unchanged environment; prints rewards.

Run where BrowserGym is installed: `solve_site_tasks.py TASK...`.
"""

from __future__ import annotations

import json
import sys

import gymnasium as gym
from browsergym.utils.obs import flatten_axtree_to_str

from agentgym_servers.web.actions.calls import write_call
from agentgym_servers.web.chromium.site_tasks import register_site_tasks
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.web.tasks.scripts import Goto, action_of
from play_in_browsergym import TRIES, stepped


def play(name: str, task: str) -> tuple[float, bool]:
    env = gym.make(f"browsergym/{name}", disable_env_checker=True, pre_observation_delay=0.1)
    seen, _ = env.reset(seed=0)
    reward, terminated = 0.0, False
    for step in embedded(0).experts[task]:
        if isinstance(step, Goto):
            step = Goto(env.unwrapped.task.sites.resolve(step.url))
        action = None
        for _ in range(TRIES):
            tree = flatten_axtree_to_str(seen["axtree_object"], ignored_properties=["url"])
            action = action_of(step, tree)
            if action is not None:
                break
            # A busy machine may still be loading what the last step opened.
            seen, *_ = env.step("noop(500)")
        assert action is not None, f"{task}: {step} names nothing in\n{tree}"
        for call in write_call(action).splitlines():
            assert not terminated
            seen, reward, terminated = stepped(env, call)
    env.close()
    return reward, terminated


def give_up(name: str) -> float:
    env = gym.make(f"browsergym/{name}", disable_env_checker=True, pre_observation_delay=0.1)
    env.reset(seed=0)
    _, reward, terminated, _, _ = env.step("report_infeasible('It is too hard.')")
    assert terminated
    env.close()
    return reward


def main() -> None:
    tasks = sys.argv[1:]
    split = embedded(0).task_set.split("test")
    names = dict(zip(split, register_site_tasks("test"), strict=True))
    told = {
        "solved": {task: play(names[task], task) for task in tasks},
        "given up": give_up(names[tasks[0]]),
    }
    sys.stdout.write(json.dumps(told) + "\n")


sys.exit(main())
