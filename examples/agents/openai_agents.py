"""An agent of the OpenAI Agents SDK that plays TextCraft with a tool. It knows nothing of training.

pip install openai-agents
agentgym train examples/agents/openai_agents.yaml
"""

from __future__ import annotations

from typing import Any

import aiohttp
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


async def play(episode: Any) -> None:
    """Play one episode; `episode` says where the model and the environment are."""

    @function_tool
    async def act(action: str) -> str:
        """Take one action, as the instruction describes it."""
        async with aiohttp.ClientSession() as http:
            headers = {"Authorization": f"Bearer {episode.api_key}"}
            url = f"{episode.base_url}/episode/step"
            async with http.post(url, json={"action": action}, headers=headers) as response:
                return (await response.json()).get("observation", "")

    async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
        model = OpenAIChatCompletionsModel("policy", client)
        agent = Agent(name="player", tools=[act], model=model)
        await Runner.run(agent, episode.observation, max_turns=episode.horizon)
