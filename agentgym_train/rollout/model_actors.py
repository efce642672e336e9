"""Actors that are models: by token ids with an engine, or by messages with a chat endpoint."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym_env.tools import ACT, ToolSpec
from agentgym_env.trajectory import Tokens
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import Generation, GenerationEngine, Sampling
from agentgym_train.engines.openai import ChatEndpoint, ContextFull
from agentgym_train.rollout.actors import ActorFactory, AgentActor
from agentgym_train.rollout.agent import Agent, AgentFactory, Message, agent_factory
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.tool_calls import ToolFormat, ToolResult
from agentgym_train.rollout.tool_syntaxes import SYNTAXES, write_hermes, written_calls


@dataclass(slots=True)
class EpisodeTokens:
    """The tokens of a context; append-only, see `Tokens` for the shapes."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn_ends: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """The whole conversation so far."""
        return self.prompt_ids + self.completion_ids

    def add_response(self, generation: Generation) -> None:
        """Append a sampled turn of n ids; the loss is on all of them."""
        n = len(generation.token_ids)
        self.completion_ids += generation.token_ids
        self.loss_mask += [1] * n
        self.logprobs += generation.logprobs
        self.versions += [generation.version] * n
        self.turn_ends.append(len(self.completion_ids))

    def add_observation(self, ids: Sequence[int]) -> None:
        """Append the ids between two sampled turns, without loss."""
        self.completion_ids += ids
        self.loss_mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [-1] * len(ids)

    def freeze(self) -> Tokens:
        """The tokens as a trajectory stores them."""
        return Tokens(
            self.prompt_ids,
            self.completion_ids,
            self.loss_mask,
            self.logprobs,
            self.versions,
            self.turn_ends,
        )


class ModelActor(AgentActor):
    """A model: a `Chat` turns messages into ids, an engine samples turns.

    Sampled ids are never re-tokenized. A new context starts a new row of tokens: repeated turns
    are in its prompt, with the ids that were sampled.
    """

    def __init__(
        self,
        engine: GenerationEngine,
        chat: Chat,
        config: PolicyConfig,
        *,
        agent: Agent,
    ) -> None:
        super().__init__(agent, config.model)
        self._engine = engine
        self._chat = chat
        self._config = config
        self._conversation = object()
        self._rows: list[EpisodeTokens] = []
        self._exchanges: list[tuple[list[int], list[int]]] = []
        self._draws = random.Random(0)

    def open(self, text: str, seed: int) -> None:
        """Encode the first prompt."""
        self._draws = random.Random(seed)
        self._rows = [EpisodeTokens(self._chat.start(text))]

    async def sample(self) -> tuple[str, int] | None:
        """One turn of the engine, if the context has room for a token."""
        row = self._rows[-1]
        room = min(self._config.turn_max_tokens, self._config.max_tokens - len(row.ids))
        if room < 1:
            return None
        sampling = Sampling(
            max_tokens=room,
            temperature=self._config.temperature,
            stop_ids=self._chat.stop_ids,
            seed=self._draws.getrandbits(63),
        )
        generation = await self._engine.generate(row.ids, sampling, self._conversation)
        row.add_response(generation)
        self.was_cut = generation.is_cut_at(self._config.turn_max_tokens)
        self._exchanges.append((generation.token_ids, []))
        return self._chat.text_of(generation.token_ids), len(generation.token_ids)

    def insert(self, text: str) -> None:
        """Append the ids of a response that was not sampled here, without loss."""
        ids = self._chat.response_ids(self._chat.demonstration(text))
        self._rows[-1].add_observation(ids)
        self._exchanges.append((ids, []))

    def append(self, message: Message, results: Sequence[ToolResult] = ()) -> None:
        """Append the message's delta, or start a new row."""
        response, _ = self._exchanges[-1]
        delta = self._chat.delta(response, message.text, results)
        self._exchanges[-1] = response, delta
        if message.context_reset is None:
            self._rows[-1].add_observation(delta)
            return
        kept = self._exchanges[len(self._exchanges) - message.context_reset.keep :]
        prompt = self._chat.start(message.context_reset.opening)
        self._rows.append(EpisodeTokens([*prompt, *(i for r, d in kept for i in (*r, *d))]))

    async def end(self) -> list[Tokens]:
        """Drop the conversation's cache and return the rows."""
        await self._engine.forget(self._conversation)
        first, *further = self._rows or [EpisodeTokens([])]
        return [row.freeze() for row in (first, *(r for r in further if r.turn_ends))]


def model_actor(
    engine: GenerationEngine,
    chat: Chat,
    config: PolicyConfig,
    new_agent: AgentFactory | None = None,
) -> ActorFactory:
    """Makes actors of one model, each with an agent of the config's or of `new_agent`."""
    make_agent = new_agent or agent_factory(config.agent, chat.form(config.form))
    return lambda: ModelActor(engine, chat, config, agent=make_agent())


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
