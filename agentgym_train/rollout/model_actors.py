"""Actors that are models: an engine samples their turns by token ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgym_env.trajectory import Tokens
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import Generation, GenerationEngine, Sampling
from agentgym_train.rollout.actors import ActorFactory, AgentActor
from agentgym_train.rollout.agent import Agent, AgentFactory, Message, agent_factory
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.tool_calls import ToolResult


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
