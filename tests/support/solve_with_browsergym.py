"""Solves some of WebArena's tasks with BrowserGym's own, unchanged environment; prints rewards.

Run where BrowserGym is installed, with the addresses in `WA_SHOPPING` and its like.
"""

from __future__ import annotations

import json
import os
import sys

import browsergym.webarena  # noqa: F401  (registers its tasks)
import gymnasium as gym
from browsergym.utils.obs import flatten_axtree_to_str

from agentgym_servers.web.actions.calls import write_call
from agentgym_servers.web.sites.site_map import real_sites
from agentgym_servers.web.tasks.scripts import Goto, action_of
from real_ways import WAYS

SITES = real_sites(os.environ)


def play(env: gym.Env, number: int) -> float:
    observation, _ = env.reset(seed=0)
    for step in WAYS[number]:
        if isinstance(step, Goto):
            step = Goto(SITES.resolve(step.url))
        tree = flatten_axtree_to_str(observation["axtree_object"], ignored_properties=["url"])
        action = action_of(step, tree)
        if action is None:
            raise SystemExit(f"task {number}: {step} names nothing in\n{tree}")
        observation, reward, terminated, _, _ = env.step(write_call(action))
        if observation["last_action_error"]:
            raise SystemExit(f"task {number}: {step}: {observation['last_action_error']}")
        if terminated:
            return float(reward)
    return 0.0


def main() -> None:
    solved, untouched = {}, {}
    for number in WAYS:
        env = gym.make(f"browsergym/webarena.{number}", disable_env_checker=True)
        solved[number] = play(env, number)
        if not untouched:
            env.reset(seed=0)
            untouched[number] = float(env.step("send_msg_to_user('')")[1])
        env.close()
    sys.stdout.write(json.dumps({"solved": solved, "untouched": untouched}) + "\n")


sys.exit(main())
