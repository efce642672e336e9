"""The agents of examples/agents, unmodified, through the gateway."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hosting
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy import Policy, connected
from agentgym_train.rollout.runner import RolloutRunner
from tests.train.templates import APPEND_ONLY, tokenizer_with

pytestmark = pytest.mark.usefixtures("guess_server")
ROOT = Path(__file__).parents[2]


def act(action):
    return f'<tool_call>\n{{"name": "act", "arguments": {{"action": "{action}"}}}}\n</tool_call>'


def play(agent, texts, horizon=6):
    """The episodes of tasks 4 and 5 by a policy that says these texts."""
    tokenizer = tokenizer_with(APPEND_ONLY["chatml"])
    chat = Chat(tokenizer)
    engine = ScriptedEngine(lambda prompt, turn: chat.response_ids(texts[turn]))
    config = PolicyConfig(model="m", agent=agent, turn_max_tokens=200, max_tokens=8000)
    agent = connected(engine, tokenizer, config)
    policy = Policy(config, None, tokenizer, chat, engine, "", black_box=agent)
    with RolloutRunner(hosting.GUESS) as runner:
        try:
            specs = [EpisodeSpec(task, 0) for task in "45"]
            return runner.collect(policy.actors(), specs, horizon)
        finally:
            runner.run(policy.close())


NEEDED = {"openai_agents": "agents", "langgraph_agent": "langgraph"}


@pytest.mark.parametrize("name", NEEDED)
def test_an_agent_of_a_framework_plays_by_tool_calls_and_is_one_row(name):
    pytest.importorskip(NEEDED[name], reason="pip install openai-agents: it needs other versions")
    solved, over = play(f"callable:examples.agents.{name}:play", [act(1), act(4), act(2)], 3)
    assert (solved.outcome, over.outcome) == ("success", "horizon"), (solved.error, over.error)
    assert [turn.action for turn in solved.turns] == ["1", "4"]
    assert [turn.action for turn in over.turns] == ["1", "4", "2"]
    for episode in (solved, over):
        assert len(episode.rows) == 1 and episode.attempts == 1
    given_up, _ = play(f"callable:examples.agents.{name}:play", [act(1), "I give up."])
    assert given_up.outcome == "failure" and len(given_up.turns) == 2


PLAIN = f"command:{sys.executable} {ROOT / 'examples' / 'agents' / 'plain.py'}"


@pytest.mark.parametrize(
    "agent",
    [PLAIN, *(f"callable:examples.agents.{name}:play" for name in ("plain", "langgraph_text"))],
    ids=["program", "callable", "langgraph"],
)
def test_an_agent_that_acts_by_texts_is_one_row(agent):
    if "langgraph" in agent:
        pytest.importorskip("langgraph", reason="pip install langgraph langchain-openai")
    solved, over = play(agent, ["1", "4", "2"], 3)
    assert (solved.outcome, over.outcome) == ("success", "horizon"), (solved.error, over.error)
    assert [turn.action for turn in over.turns] == ["1", "4", "2"] and len(over.rows) == 1
