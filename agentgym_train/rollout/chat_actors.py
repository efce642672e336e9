"""Actors that are chat endpoints: a service answers messages, and no token ids are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentgym_env.tools import ACT, ToolSpec
from agentgym_env.trajectory import Tokens
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.openai import ChatEndpoint, ContextFull
from agentgym_train.rollout.actors import ActorFactory, AgentActor
from agentgym_train.rollout.agent import Agent, Message, agent_factory
from agentgym_train.rollout.tool_calls import ToolFormat, ToolResult
from agentgym_train.rollout.tool_syntaxes import SYNTAXES, write_hermes, written_calls


class ChatActor(AgentActor):
    """A chat endpoint: a conversation as messages, built by the same agents as a model's.

    Endpoints have no reliable seed: the same episode may differ when it is run again.
    """

    def __init__(
        self,
        endpoint: ChatEndpoint,
        config: PolicyConfig,
        *,
        agent: Agent,
        system_prompt: str,
        tools: Sequence[ToolSpec] = (),
    ) -> None:
        super().__init__(agent, f"openai:{endpoint.settings.model}")
        self._tools = [tool.as_function() for tool in tools]
        self._endpoint = endpoint
        self._config = config
        self._system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._messages: list[dict[str, Any]] = []
        self._used = 0
        self._usage: Counter[str] = Counter()

    def open(self, text: str, seed: int) -> None:
        """Start with the system prompt and the first message."""
        self._messages = [*self._system, _user(text)]

    async def sample(self) -> tuple[str, int] | None:
        """Request a turn, if the context has room."""
        room = min(self._config.turn_max_tokens, self._config.max_tokens - self._used)
        if room < 1:
            return None
        try:
            reply = await self._endpoint.respond(
                self._messages,
                max_tokens=room,
                temperature=self._config.temperature,
                tools=self._tools,
            )
        except ContextFull:
            return None
        self.was_cut = reply.reached_limit and room == self._config.turn_max_tokens
        self._used = reply.total_tokens
        self._usage["requests"] += 1
        self._usage["prompt_tokens"] += reply.total_tokens - reply.completion_tokens
        self._usage["completion_tokens"] += reply.completion_tokens
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.tool_calls:
            message["tool_calls"] = list(reply.tool_calls)
        self._messages.append(message)
        return reply.text + written_calls(reply.tool_calls), reply.completion_tokens

    def insert(self, text: str) -> None:
        """Append a response that was not requested here."""
        self._messages.append({"role": "assistant", "content": text})

    def append(self, message: Message, results: Sequence[ToolResult] = ()) -> None:
        """Append the message, or start a new context."""
        called = [call["id"] for call in self._messages[-1].get("tool_calls", ())]
        for number, identity in enumerate(called):
            text = results[number].text if number < len(results) else message.text
            self._messages.append({"role": "tool", "tool_call_id": identity, "content": text})
        if not called:
            self._messages.append(_user(message.text))
        if message.context_reset is not None:
            kept = self._messages[len(self._messages) - 2 * message.context_reset.keep :]
            self._messages = [*self._system, _user(message.context_reset.opening), *kept]
            self._used = 0

    async def end(self) -> list[Tokens]:
        """An endpoint reports no token ids."""
        return []

    def used(self) -> dict[str, int]:
        """Token usage as the endpoint reports it."""
        return dict(self._usage)


def chat_actors(
    endpoint: ChatEndpoint,
    config: PolicyConfig,
    *,
    env_instruction: str = "",
    tools: Sequence[ToolSpec] = (),
) -> ActorFactory:
    """Makes actors that use one chat endpoint."""
    prompt, form = config.system_prompt(env_instruction), config.form
    if form.name != "tools":
        tools = ()
    else:
        tools = tools or [ACT]
        form = ToolFormat(tuple(tools), SYNTAXES["hermes"], write_hermes)
    new_agent = agent_factory(config.agent, form)
    return lambda: ChatActor(endpoint, config, agent=new_agent(), system_prompt=prompt, tools=tools)


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
