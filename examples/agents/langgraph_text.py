"""A LangGraph agent that plays TextCraft by texts, without tools. It knows nothing of training.

pip install langgraph langchain-openai
agentgym train examples/agents/langgraph_text.yaml
"""

from __future__ import annotations

from typing import Any

import aiohttp
import httpx
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph


class State(MessagesState):
    """The conversation, and whether the episode is over."""

    over: bool


async def play(episode: Any) -> None:
    """Play one episode; `episode` says where the model and the environment are."""
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    async with httpx.AsyncClient() as connections, aiohttp.ClientSession(headers=headers) as http:
        model = ChatOpenAI(
            base_url=episode.base_url,
            api_key=episode.api_key,
            model="policy",
            http_async_client=connections,
        )

        async def think(state: State) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        async def act(state: State) -> dict[str, Any]:
            body = {"action": state["messages"][-1].content}
            async with http.post(f"{episode.base_url}/episode/step", json=body) as response:
                seen = await response.json()
            return {"messages": [("user", seen.get("observation", ""))], "over": seen["over"]}

        graph = StateGraph(State)
        graph.add_node("think", think)
        graph.add_node("act", act)
        graph.add_edge(START, "think")
        graph.add_edge("think", "act")
        graph.add_conditional_edges("act", lambda state: END if state["over"] else "think")
        limits = {"recursion_limit": 2 * episode.horizon + 1}
        await graph.compile().ainvoke({"messages": [("user", episode.observation)]}, limits)
