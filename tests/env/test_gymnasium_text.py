"""TextEnv.from_gymnasium: Gymnasium's discrete environments as text."""

import random
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from agentgym_env import TextEnv
from agentgym_env.conformance import RULES, check_environment
from agentgym_env.errors import BadRequest, EpisodeOver

EXAMPLES = Path(__file__).parents[2] / "examples" / "gymnasium"
FILES = {"blackjack": "Blackjack", "frozen_lake": "FrozenLake", "taxi": "Taxi"}


@pytest.fixture
def examples(monkeypatch):
    """The examples' folder, where a server's process finds it too."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in [*FILES, "planning"]:
        sys.modules.pop(name, None)


def native(task: str, seed: int, actions: list[int], env_id: str, **settings) -> list[tuple]:
    """The same episode without text: its observations, rewards and ends."""
    text = TextEnv.from_gymnasium(env_id, **settings)()
    text.reset(seed=seed, options={"task": task})
    again = type(text)()
    again.reset(seed=seed, options={"task": task})
    env = gymnasium.make(env_id, **settings)
    first, _ = env.reset(seed=int(_episode_rng(seed, task) * 2**31))
    assert first == again.observation
    return [env.step(action)[:4] for action in actions]


def _episode_rng(seed: int, task: str) -> float:

    return random.Random(f"{seed}/{task}").random()


@pytest.mark.parametrize(
    ("env_id", "actions"), [("CliffWalking-v1", [0, 1, 1, 2]), ("FrozenLake-v1", [2, 2, 1, 1])]
)
def test_an_episode_as_text_is_the_episode_itself(env_id, actions):
    told = native("5", 3, actions, env_id)
    env = TextEnv.from_gymnasium(env_id)()
    env.reset(seed=3, options={"task": "5"})
    for action, (seen, reward, ended, cut) in zip(actions, told, strict=True):
        assert env.step(str(action))[:4] == (f"Observation: {seen}", reward, ended, cut)
        if ended or cut:
            break


def test_names_describe_and_parse_are_the_authors():
    lake = TextEnv.from_gymnasium(
        "FrozenLake-v1", lambda place, env: f"at {place} of {env.unwrapped.nrow ** 2}",
        ["left", "down", "right", "up"], is_slippery=False,
    )  # fmt: skip
    env = lake()
    assert lake.__name__ == "FrozenLake"
    assert env.instruction == "You are in FrozenLake-v1. Answer with one of: left, down, right, up."
    assert env.reset(seed=0)[0] == "at 0 of 16"
    assert env.available_actions() == ["left", "down", "right", "up"]
    assert env.step(" Right ")[0] == "at 1 of 16"
    parsed = TextEnv.from_gymnasium("FrozenLake-v1", parse={"on": 2}.get, is_slippery=False)()
    parsed.reset(seed=0)
    assert parsed.step("on")[0] == "Observation: 1" and parsed.available_actions() is None


def test_what_is_no_action_takes_a_turn_and_moves_nothing():
    env = TextEnv.from_gymnasium("FrozenLake-v1", parse=["a", "b", "c", "d"])()
    env.reset(seed=0)
    observation, reward, ended, cut, info = env.step("north" * 100)
    assert observation.endswith(
        "' is no action here. Answer with one of: a, b, c, d.\nObservation: 0"
    )
    assert len(observation) < 300 and (reward, ended, cut) == (0.0, False, False)
    assert info["turn"] == 1
    costly = TextEnv.from_gymnasium("FrozenLake-v1", refused=-0.5)()
    costly.reset(seed=0)
    assert costly.step("north")[1] == -0.5


def test_the_environments_own_time_limit_truncates():
    env = TextEnv.from_gymnasium("FrozenLake-v1", max_episode_steps=3)()
    env.reset(seed=0)
    assert [env.step("0")[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    assert env.success() is False
    with pytest.raises(EpisodeOver):
        env.step("0")
    env.reset(seed=0)
    assert env.step("0")[3] is False


def test_an_action_mask_is_what_is_available():
    env = TextEnv.from_gymnasium("Taxi-v4", parse=["s", "n", "e", "w", "up", "off"])()
    _, _ = env.reset(seed=0, options={"task": "1"})
    mask = env.env.unwrapped.action_mask(env.observation)
    named = [n for n, allowed in zip(env.names, mask, strict=True) if allowed]
    assert env.available_actions() == named != list(env.names)


class Numbers(gymnasium.Env):
    """Actions from 3 to 5; the last ends it, and pays."""

    observation_space = Box(0, 1, (2,))
    action_space = Discrete(3, start=3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([0.0, 0.5]), {}

    def step(self, action):
        return {"n": np.int64(action), "t": (np.float32(0.5), [1])}, 2.0, action == 5, False, {}


def test_any_maker_of_an_environment_will_do_and_numbers_are_told_plainly():
    made = TextEnv.from_gymnasium(Numbers)
    env = made()
    assert made.__name__ == "Numbers" and made.names == ("3", "4", "5")
    assert env.reset(seed=0)[0] == "Observation: [0.0, 0.5]"
    assert env.step("4")[0] == "Observation: {'n': 4, 't': (0.5, (1,))}"
    assert env.step("5")[1:3] == (2.0, True) and env.success() and env.score() == 4.0


class Several(Numbers):
    """Its actions have several numbers."""

    action_space = MultiDiscrete([2, 2])


def test_what_cannot_be_told_as_text_is_refused_at_once():
    with pytest.raises(BadRequest, match="have no names; give a parse"):
        TextEnv.from_gymnasium(Several)
    with pytest.raises(BadRequest, match="there are 4 actions, and a name is needed for each"):
        TextEnv.from_gymnasium("FrozenLake-v1", parse=["a", "b", "c", "A"])
    with pytest.raises(BadRequest, match="are for gymnasium"):
        TextEnv.from_gymnasium(Numbers, size=3)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), FILES.items())
def test_each_example_is_short_and_keeps_every_promise_of_an_environment(examples, module, name):
    assert len((EXAMPLES / f"{module}.py").read_text().splitlines()) < 40
    findings = list(check_environment(f"{module}:{name}"))
    assert len(findings) == len(RULES)
    assert not [finding for finding in findings if not finding.passed], findings
