"""The expert's episodes of TextCraft, played without a server."""

from __future__ import annotations

from agentgym_env.trajectory import Trajectory, Turn
from agentgym_servers.worlds.textcraft.env import TextCraft


def demonstration(task: str = "stick", seed: int = 0, **changes) -> Trajectory:
    """The expert's episode of one task."""
    env = TextCraft()
    observation, _ = env.reset(seed=seed, options={"task": task})
    turns, ended = [], False
    while not ended:
        action = env.expert_action()
        answer, reward, ended, _, _ = env.step(action)
        turns.append(Turn(action, action, answer, reward))
    values = {
        "env": "agentgym/TextCraft-v0", "task": task, "seed": seed, "instruction": "",
        "observation": observation, "turns": turns, "outcome": "success", "policy": "expert",
        "horizon": 50, "success": True, "split": "train",
    }  # fmt: skip
    return Trajectory(**{**values, **changes})
