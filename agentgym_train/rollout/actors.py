"""Actors: a model, an oracle or chance, each answering an environment's observations."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentgym_env.actions import ActionError
from agentgym_env.client.aio import AsyncSession
from agentgym_env.errors import ConfigError, Outcome
from agentgym_env.trajectory import Tokens
from agentgym_train.config.base import PolicyConfig
from agentgym_train.engines.base import Generation, GenerationEngine, Sampling
from agentgym_train.engines.openai import ChatEndpoint, ContextFull
from agentgym_train.rollout.agent import Agent, AgentFactory, Message
from agentgym_train.rollout.chat import Chat


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


@dataclass(frozen=True, slots=True)
class ActorOutput:
    """The output of an actor in one turn."""

    response: str
    """Its text as sampled."""
    action: str | ActionError | None
    """The action, or why the response has none; None for a non-action turn, such as a plan."""
    answer: str = ""
    """The agent's message after a non-action turn."""
    tokens: int = 0
    """Number of sampled tokens."""


class Actor(Protocol):
    """Acts in one episode."""

    name: str
    trials: int = 1
    """Trials that an episode is planned for; they share its horizon."""

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Receive the first observation. `seed` is for the actor's own sampling."""
        ...

    async def act(self) -> ActorOutput | None:
        """The next turn; None when the token budget is used up."""
        ...

    async def observe(self, observation: str) -> None:
        """Receive the observation after the last action."""
        ...

    async def reflection(self, outcome: Outcome, observation: str) -> str | None:
        """The reflection that starts another trial; None if there is to be no other trial.

        `observation` is the last one, which `observe` did not receive.
        """
        return None

    async def begin_again(self, reflection: str, observation: str) -> None:
        """Receive the first observation of another trial."""
        raise ConfigError(f"the actor {self.name} has no further trials")

    async def end(self) -> list[Tokens]:
        """Release resources and return the episode's rows of tokens."""
        ...

    def used(self) -> dict[str, int]:
        """Token usage of this episode; see `Trajectory.usage`."""
        return {}


ActorFactory = Callable[[], Actor]


class AgentActor(Actor):
    """An actor whose conversation an agent builds; subclasses sample and store it."""

    def __init__(self, agent: Agent, name: str) -> None:
        self.name = name
        self.agent = agent
        self.trials = agent.trials
        self._acts = True

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Start the conversation."""
        message = self.agent.begin(observation)
        self._acts = message.acts
        self.open(message.text, seed)

    async def act(self) -> ActorOutput | None:
        """Sample a turn; None if no tokens are left."""
        sampled = await self.sample()
        if sampled is None:
            return None
        text, tokens = sampled
        if self._acts:
            return ActorOutput(text, self.agent.format.parse(text), tokens=tokens)
        message = self.agent.after_non_action(text)
        self._send(message)
        return ActorOutput(text, None, message.text, tokens)

    async def observe(self, observation: str) -> None:
        """Send the agent's message about the observation."""
        self._send(self.agent.observed(observation))

    async def reflection(self, outcome: Outcome, observation: str) -> str | None:
        """The policy's answer to the agent's question, if it asks one."""
        message = self.agent.reflection(outcome, observation)
        if message is None:
            return None
        self._send(message)
        sampled = await self.sample()
        return None if sampled is None else sampled[0]

    async def begin_again(self, reflection: str, observation: str) -> None:
        """Start another trial with the reflection on the last one."""
        self._send(self.agent.begin_again(reflection, observation))

    def _send(self, message: Message) -> None:
        self._acts = message.acts
        self.append(message)

    def open(self, text: str, seed: int) -> None:
        """Start a conversation with its first message. `seed` is for this episode's sampling."""
        raise NotImplementedError

    async def sample(self) -> tuple[str, int] | None:
        """The text of the next turn and its number of tokens; None if no tokens are left."""
        raise NotImplementedError

    def append(self, message: Message) -> None:
        """Append a message to the context, or start the new context that it requests."""
        raise NotImplementedError


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
        self._exchanges.append((generation.token_ids, []))
        return self._chat.text_of(generation.token_ids), len(generation.token_ids)

    def append(self, message: Message) -> None:
        """Append the message's delta, or start a new row."""
        response, _ = self._exchanges[-1]
        delta = self._chat.delta(response, message.text)
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


class ExpertActor(Actor):
    """The environment's own expert."""

    name = "expert"

    def __init__(self) -> None:
        self._session: AsyncSession | None = None

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Keep the session."""
        self._session = session

    async def act(self) -> ActorOutput | None:
        """The expert's action; None if it has none."""
        action = await self._session.expert_action() if self._session else None
        return None if action is None else ActorOutput(action, action)

    async def observe(self, observation: str) -> None:
        """The expert reads the environment itself."""

    async def end(self) -> list[Tokens]:
        """No tokens are sampled."""
        return []


class RandomActor(Actor):
    """A random available action; a short random text if the environment lists none."""

    name = "random"

    def __init__(self) -> None:
        self._session: AsyncSession | None = None
        self._draws = random.Random(0)

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Keep the session and the seed."""
        self._session = session
        self._draws = random.Random(seed)

    async def act(self) -> ActorOutput | None:
        """A random action."""
        actions = await self._session.available_actions() if self._session else None
        if actions:
            action = actions[int(self._draws.random() * len(actions))]
        else:
            action = "".join(self._draws.choice("abcdefghij 0123456789") for _ in range(12))
        return ActorOutput(action, action)

    async def observe(self, observation: str) -> None:
        """Observations are ignored."""

    async def end(self) -> list[Tokens]:
        """No tokens are sampled."""
        return []


def model_actor(
    engine: GenerationEngine,
    chat: Chat,
    config: PolicyConfig,
    new_agent: AgentFactory | None = None,
) -> ActorFactory:
    """Makes actors of one model, each with an agent of the config's or of `new_agent`."""
    make_agent = new_agent or config.new_agent
    return lambda: ModelActor(engine, chat, config, agent=make_agent())


def draw_seed(*parts: object) -> int:
    """A 63-bit seed from values that print the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


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
    ) -> None:
        super().__init__(agent, f"openai:{endpoint.settings.model}")
        self._endpoint = endpoint
        self._config = config
        self._system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._messages: list[dict[str, str]] = []
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
                self._messages, max_tokens=room, temperature=self._config.temperature
            )
        except ContextFull:
            return None
        self._used = reply.total_tokens
        self._usage["requests"] += 1
        self._usage["prompt_tokens"] += reply.total_tokens - reply.completion_tokens
        self._usage["completion_tokens"] += reply.completion_tokens
        self._messages.append({"role": "assistant", "content": reply.text})
        return reply.text, reply.completion_tokens

    def append(self, message: Message) -> None:
        """Append the message, or start a new context."""
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
    endpoint: ChatEndpoint, config: PolicyConfig, *, env_instruction: str = ""
) -> ActorFactory:
    """Makes actors that use one chat endpoint."""
    new_agent = config.new_agent
    prompt = config.system_prompt(env_instruction)
    return lambda: ChatActor(endpoint, config, agent=new_agent(), system_prompt=prompt)


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
