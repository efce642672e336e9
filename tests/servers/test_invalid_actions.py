"""Every world says whether an action was none, so that evaluations can count them."""

from __future__ import annotations

import pytest

from agentgym_env.registry import env_class
from agentgym_env.text_env import TextEnv
from browsing import needs_chromium
from worlds import Guess

WORLDS = {
    "agentgym/TextCraft-v0": (["inventory"], ["dance", "get 1 x", "craft x", "", "y" * 9999]),
    "agentgym/BabyAI-v0": (["turn left", "check available actions"], ["fly", "", "z" * 9999]),
    "agentgym/SciWorld-v0": (["look around"], ["fly to mars", "reset task", "", "z" * 9999]),
    "agentgym/Search-v0": (
        ["<search>time</search>", "<think>x</think><answer>no</answer>"],
        ["time", "<search></search>", ""],
    ),
    "agentgym/WebArena-v0": (["noop()", "scroll(0, 200)"], ["click('999999')", "jump()", ""]),
    "agentgym/MiniWoB-v0": (["noop()"], ["click('999999')", "jump()", ""]),
}


@pytest.mark.parametrize(
    "env_id",
    [pytest.param(name, marks=[needs_chromium] if "MiniWoB" in name else []) for name in WORLDS],
)
def test_an_action_that_is_none_is_told_apart_from_one_that_is(env_id):
    env: TextEnv = env_class(env_id)()
    valid, invalid = WORLDS[env_id]
    try:
        task = env.tasks.split("test")[0]
        _, info = env.reset(seed=0, options={"task": task})
        assert "invalid_action" not in info
        for action in (*invalid, valid[0], invalid[0], *valid):
            found = env.step(action)[-1]["invalid_action"]
            assert found is (action in invalid), f"{action!r} is invalid: {found}"
        env.reset(seed=0, options={"task": task})
        assert env.step(valid[0])[-1]["invalid_action"] is False
    finally:
        env.close()


def test_a_world_that_does_not_say_leaves_the_key_out():
    env = Guess()
    env.reset(seed=0)
    assert "invalid_action" not in env.step("no digit")[-1]
