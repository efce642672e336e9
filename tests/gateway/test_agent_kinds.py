"""Kinds of black-box agents: entry points of this project, and of other distributions."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points

import pytest

from agentgym_env.errors import ConfigError
from agentgym_gateway.agents import CallableAgent, CommandAgent, ExternalAgent
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.rollout.agent import black_box, is_black_box
from tests.train.small import save_tiny_policy

AGENT = """
from agentgym_env.errors import ConfigError
from agentgym_gateway.agents import GatewayAgent
from agentgym_gateway.programs import Called, Command


class Guesses(GatewayAgent):
    written = "guesses:NUMBER"

    def __init__(self, target, settings):
        super().__init__(target, settings)
        if not target.isdecimal():
            raise ConfigError(f"{target} is no number")

    def program(self):
        return Called(self.play)

    def play(self, access):
        import json, urllib.request

        def post(path, body):
            request = urllib.request.Request(
                access.base_url + path,
                json.dumps(body).encode(),
                {"Authorization": f"Bearer {access.api_key}", "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)

        post("/chat/completions", {"messages": [{"role": "user", "content": access.observation}]})
        post("/episode/step", {"action": self.target})



class NoAgent:
    def __init__(self, target, settings):
        pass


class Fails(NoAgent):
    def __init__(self, target, settings):
        1 / 0


class Idle(GatewayAgent):
    written = "idle:NUMBER"


class Nothing(Idle):
    def program(self):
        return None


class Missing(Idle):
    def program(self):
        return Command(("no-such-program",))


class Raises(Idle):
    def program(self):
        return self

    async def run(self, access):
        raise OSError("gone")


def nothing():
    pass
"""

SCRIPT = """
import sys
from agentgym_env.errors import ConfigError
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.rollout.agent import agent_factory, black_box, is_black_box
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.runner import RolloutRunner

assert "guessing" not in sys.modules
model = sys.argv[1]
assert not is_black_box("plain") and is_black_box("guesses:4") and is_black_box("absent")
for agent, kind in (("command:true", "CommandAgent"), ("callable:a:b", "CallableAgent"),
                    ("external", "ExternalAgent")):
    made = black_box({"type": agent, "address_file": "x"})
    assert (type(made).__module__, type(made).__name__) == ("agentgym_gateway.agents", kind)
for agent, said in (("guesses:x", "x is no number"), ("guesses", "write `guesses:NUMBER`"),
                    ("absent", "the agent absent of no_such_module:Agent cannot be made"),
                    ("function", "the agent function of guessing:nothing cannot be made: TypeErr"),
                    ("fails:1", "the agent fails of guessing:Fails cannot be made: ZeroDivision"),
                    ("no-agent:1", "is no `BlackBox`: it has no method `connect`"),
                    ("idle:1", "cannot be started: NotImplementedError: Idle has no method"),
                    ("nothing:1", "`program` of Nothing returned None, which has no `run`"),
                    ("missing:1", "there is no program 'no-such-program'")):
    try:
        PolicyConfig(model=model, agent=agent).check_policy()
        make_policy(PolicyConfig(model=model, agent=agent))
    except ConfigError as error:
        assert said in str(error), error
    else:
        raise AssertionError(agent)
config = PolicyConfig(model=model, agent="guesses:4", turn_max_tokens=6, instruction="")
config.check_policy()
policy = make_policy(config)
with RolloutRunner("worlds:Guess") as runner:
    specs = [EpisodeSpec(task, 0, split="train") for task in "45"]
    solved, failed = runner.collect(policy.actors(), specs, 3)
    runner.run(policy.close())
assert (solved.outcome, failed.outcome) == ("success", "failure"), (solved, failed)
policy = make_policy(PolicyConfig(model=model, agent="raises:1", instruction=""))
with RolloutRunner("worlds:Guess") as runner:
    (lost,) = runner.collect(policy.actors(), [EpisodeSpec("4", 0, split="train")], 3)
    runner.run(policy.close())
assert lost.outcome == "agent_lost" and "the agent raised OSError: gone" in lost.error
assert all(len(episode.rows) == 1 for episode in (solved, failed))
"""


@pytest.fixture
def distribution(tmp_path):
    """A folder with an installed distribution that has kinds of agents."""
    info = tmp_path / "guessing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guessing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[agentgym.agents]\n"
        "guesses = guessing:Guesses\n"
        "absent = no_such_module:Agent\n"
        "fails = guessing:Fails\n"
        "function = guessing:nothing\n"
        "idle = guessing:Idle\n"
        "missing = guessing:Missing\n"
        "no-agent = guessing:NoAgent\n"
        "nothing = guessing:Nothing\n"
        "raises = guessing:Raises\n"
        "command = guessing:Guesses\n"
        "callable = agentgym_guessing:Guesses\n"
        "external = agentgym_gateway.agents:CommandAgent\n"
        "plain = guessing:Guesses\n"
    )
    (tmp_path / "guessing.py").write_text(AGENT)
    return tmp_path


def test_another_distribution_adds_a_kind_of_agent(distribution, worlds_folder):
    model = save_tiny_policy(distribution / "policy")
    before = (str(distribution), str(worlds_folder), os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(filter(None, before))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(model)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_this_project_has_three_kinds():
    kinds = {point.name: point.load() for point in entry_points(group="agentgym.agents")}
    assert kinds == {
        "command": CommandAgent, "callable": CallableAgent, "external": ExternalAgent,
    }  # fmt: skip
    for name, kind in kinds.items():
        assert is_black_box(name) and kind.written.partition(":")[0] == name
    assert black_box("package.module:Agent") is None


@pytest.mark.parametrize("agent", ["command: ", "callable:", "external:x"])
def test_a_kind_says_how_it_is_written(agent):
    kind = agent.partition(":")[0]
    with pytest.raises(ConfigError, match=f"'{agent.strip(': ')}' is incomplete .* write `{kind}"):
        PolicyConfig(model="m", agent=agent).check_policy()
