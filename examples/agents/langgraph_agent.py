"""An agent of LangGraph that plays TextCraft with a tool. It knows nothing of training.

pip install langgraph langchain-openai
agentgym train examples/agents/langgraph_agent.yaml
"""

from __future__ import annotations

from typing import Any

import aiohttp
import httpx
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


async def play(episode: Any) -> None:
    """Play one episode; `episode` says where the model and the environment are."""

    @tool
    async def act(action: str) -> str:
        """Take one action, as the instruction describes it."""
        async with aiohttp.ClientSession() as http:
            headers = {"Authorization": f"Bearer {episode.api_key}"}
            url = f"{episode.base_url}/episode/step"
            async with http.post(url, json={"action": action}, headers=headers) as response:
                return (await response.json()).get("observation", "")

    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([act]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    limits = {"recursion_limit": 2 * episode.horizon + 1}
    async with httpx.AsyncClient() as connections:
        model = ChatOpenAI(
            base_url=episode.base_url,
            api_key=episode.api_key,
            model="policy",
            http_async_client=connections,
        ).bind_tools([act])

        async def think(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph.add_node("think", think)
        await graph.compile().ainvoke({"messages": [("user", episode.observation)]}, limits)
