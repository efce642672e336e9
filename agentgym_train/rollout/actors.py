"""Actors: a model, an oracle or chance, each answering an environment's observations."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentgym_env.actions import ActionError, ActionFormat
from agentgym_env.client.aio import AsyncSession
from agentgym_env.errors import BadRequest, Outcome
from agentgym_env.trajectory import Tokens
from agentgym_train.engines.base import Generation, GenerationEngine, Sampling
from agentgym_train.engines.openai import ChatEndpoint, ContextFull
from agentgym_train.rollout.agent import Agent, Message, agent_factory
from agentgym_train.rollout.chat import Chat


@dataclass(slots=True)
class EpisodeTokens:
    """Append-only; see `Tokens` for the shapes. What was sampled is never encoded again."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn_ends: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """The whole conversation: what the next turn is sampled after."""
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
        """Append what stands between two sampled turns; no loss on it."""
        self.completion_ids += ids
        self.loss_mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [-1] * len(ids)

    def freeze(self) -> Tokens:
        """The episode's tokens as they are kept in its trajectory."""
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
    """What a player answers in one turn."""

    response: str
    """Its text as sampled."""
    action: str | ActionError | None
    """What is sent to the world, or why the text holds no action; None for a turn without an
    environment step, such as a plan."""
    answer: str = ""
    """What the agent itself answers to a turn without an environment step."""
    tokens: int = 0
    """How many tokens were sampled."""


class Actor(Protocol):
    """Plays one episode; made anew for each."""

    name: str

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Take in the first observation. `seed` is of this player's own draws."""
        ...

    async def act(self) -> ActorOutput | None:
        """The next move; None when the token budget is used up."""
        ...

    async def observe(self, observation: str) -> None:
        """Take in the world's answer to the last move."""
        ...

    async def lesson(self, outcome: Outcome, observation: str) -> str | None:
        """What the player takes from this trial into another; None if there is to be no other.

        `observation` is the last, which was not observed before.
        """
        return None

    async def begin_again(self, lesson: str, observation: str) -> None:
        """Take in the first observation of another trial."""
        raise BadRequest(f"the player {self.name} plays an episode once")

    async def end(self) -> list[Tokens]:
        """The episode is over: release what is held, and give its rows of tokens."""
        ...

    def used(self) -> dict[str, int]:
        """What an endpoint counted for this episode; see `Trajectory.usage`."""
        return {}


ActorFactory = Callable[[], Actor]


class AgentActor(Actor):
    """A conversation that an agent builds; what samples and keeps it is a subclass's."""

    def __init__(self, agent: Agent, name: str) -> None:
        self.name = name
        self.agent = agent
        self._acts = True

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Open the conversation."""
        message = self.agent.begin(observation)
        self._acts = message.acts
        self.open(message.text, seed)

    async def act(self) -> ActorOutput | None:
        """Sample a turn; None when there is no room for one."""
        sampled = await self.sample()
        if sampled is None:
            return None
        text, tokens = sampled
        if self._acts:
            return ActorOutput(text, self.agent.format.parse(text), tokens=tokens)
        message = self.agent.said(text)
        self._say(message)
        return ActorOutput(text, None, message.text, tokens)

    async def observe(self, observation: str) -> None:
        """Tell the policy what the agent makes of it."""
        self._say(self.agent.observed(observation))

    async def lesson(self, outcome: Outcome, observation: str) -> str | None:
        """The policy's answer, where the agent has a question."""
        message = self.agent.lesson(outcome, observation)
        if message is None:
            return None
        self._say(message)
        sampled = await self.sample()
        return None if sampled is None else sampled[0]

    async def begin_again(self, lesson: str, observation: str) -> None:
        """Begin another trial, with the lesson of the last one."""
        self._say(self.agent.begin_again(lesson, observation))

    def _say(self, message: Message) -> None:
        self._acts = message.acts
        self.tell(message)

    def open(self, text: str, seed: int) -> None:
        """Begin a conversation with its first message. `seed` is of this episode's draws."""
        raise NotImplementedError

    async def sample(self) -> tuple[str, int] | None:
        """The next turn's text and number of tokens; None when there is no room for it."""
        raise NotImplementedError

    def tell(self, message: Message) -> None:
        """Append a message to the context, or begin the new context that it asks for."""
        raise NotImplementedError


class ModelActor(AgentActor):
    """A model: an agent's messages become ids by a `Chat`, turns are sampled by an engine.

    What was sampled is never encoded again. Where the agent cuts the context, a new row of tokens
    begins: what it repeats of earlier turns is in its prompt, as the ids that were sampled.
    """

    def __init__(
        self,
        engine: GenerationEngine,
        chat: Chat,
        sampling: Sampling,
        *,
        max_tokens: int,
        agent: Agent,
        name: str,
    ) -> None:
        super().__init__(agent, name)
        self._engine = engine
        self._chat = chat
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._conversation = object()
        self._rows: list[EpisodeTokens] = []
        self._exchanges: list[tuple[list[int], list[int]]] = []
        self._draws = random.Random(0)

    def open(self, text: str, seed: int) -> None:
        """Encode the first prompt."""
        self._draws = random.Random(seed)
        self._rows = [EpisodeTokens(self._chat.start(text))]

    async def sample(self) -> tuple[str, int] | None:
        """One turn of the engine's, as long as the context's budget leaves room for a token."""
        row = self._rows[-1]
        room = min(self._sampling.max_tokens, self._max_tokens - len(row.ids))
        if room < 1:
            return None
        sampling = Sampling(
            max_tokens=room,
            temperature=self._sampling.temperature,
            stop_ids=self._chat.stop_ids,
            seed=self._draws.getrandbits(63),
        )
        generation = await self._engine.generate(row.ids, sampling, self._conversation)
        row.add_response(generation)
        self._exchanges.append((generation.token_ids, []))
        return self._chat.text_of(generation.token_ids), len(generation.token_ids)

    def tell(self, message: Message) -> None:
        """Append the message's delta, or begin a new row."""
        response, _ = self._exchanges[-1]
        delta = self._chat.delta(response, message.text)
        self._exchanges[-1] = response, delta
        if message.cut is None:
            self._rows[-1].add_observation(delta)
            return
        kept = self._exchanges[len(self._exchanges) - message.cut.keep :]
        prompt = self._chat.start(message.cut.opening)
        self._rows.append(EpisodeTokens([*prompt, *(i for r, d in kept for i in (*r, *d))]))

    async def end(self) -> list[Tokens]:
        """Let the engine drop the conversation's cache."""
        await self._engine.forget(self._conversation)
        first, *further = self._rows or [EpisodeTokens([])]
        return [row.freeze() for row in (first, *(r for r in further if r.turn_ends))]


class ExpertActor(Actor):
    """The world's own oracle."""

    name = "expert"

    def __init__(self) -> None:
        self._session: AsyncSession | None = None

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Remember whom to ask."""
        self._session = session

    async def act(self) -> ActorOutput | None:
        """The oracle's action; None when it gives up."""
        action = await self._session.expert_action() if self._session else None
        return None if action is None else ActorOutput(action, action)

    async def observe(self, observation: str) -> None:
        """The oracle reads the world itself."""

    async def end(self) -> list[Tokens]:
        """There are no tokens."""
        return []


class RandomActor(Actor):
    """One of the available actions at random; where the world lists none, a random short text."""

    name = "random"

    def __init__(self) -> None:
        self._session: AsyncSession | None = None
        self._draws = random.Random(0)

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Remember whom to ask, and seed the draws."""
        self._session = session
        self._draws = random.Random(seed)

    async def act(self) -> ActorOutput | None:
        """Draw an action."""
        actions = await self._session.available_actions() if self._session else None
        if actions:
            action = actions[int(self._draws.random() * len(actions))]
        else:
            action = "".join(self._draws.choice("abcdefghij 0123456789") for _ in range(12))
        return ActorOutput(action, action)

    async def observe(self, observation: str) -> None:
        """Chance learns nothing."""

    async def end(self) -> list[Tokens]:
        """There are no tokens."""
        return []


def model_actor(
    engine: GenerationEngine,
    chat: Chat,
    sampling: Sampling,
    *,
    max_tokens: int,
    policy: str,
    action_format: ActionFormat,
    agent: str = "plain",
) -> ActorFactory:
    """A maker of players for one model. `max_tokens` bounds prompt and completion of a context."""
    new_agent = agent_factory(agent, action_format)
    return lambda: ModelActor(
        engine, chat, sampling, max_tokens=max_tokens, agent=new_agent(), name=policy
    )


def draw_seed(*parts: object) -> int:
    """A 63-bit seed out of anything that prints the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True, slots=True)
class ChatSampling:
    """How an endpoint is asked for a turn."""

    turn_max_tokens: int
    max_tokens: int
    """Most tokens of a context, by the endpoint's own count."""
    temperature: float = 1.0


class ChatActor(AgentActor):
    """A conversation as messages, built by the same agents as a model's own.

    Endpoints have no seed that can be relied on: the same episode played twice may differ.
    """

    def __init__(
        self,
        endpoint: ChatEndpoint,
        sampling: ChatSampling,
        *,
        agent: Agent,
        instruction: str,
        name: str,
    ) -> None:
        super().__init__(agent, name)
        self._endpoint = endpoint
        self._sampling = sampling
        self._system = [{"role": "system", "content": instruction}] if instruction else []
        self._messages: list[dict[str, str]] = []
        self._used = 0
        self._usage: Counter[str] = Counter()

    def open(self, text: str, seed: int) -> None:
        """Begin with the instruction and the first message."""
        self._messages = [*self._system, _user(text)]

    async def sample(self) -> tuple[str, int] | None:
        """Ask for a turn, as long as the context has room."""
        room = min(self._sampling.turn_max_tokens, self._sampling.max_tokens - self._used)
        if room < 1:
            return None
        try:
            reply = await self._endpoint.say(
                self._messages, max_tokens=room, temperature=self._sampling.temperature
            )
        except ContextFull:
            return None
        self._used = reply.total_tokens
        self._usage["requests"] += 1
        self._usage["prompt_tokens"] += reply.total_tokens - reply.completion_tokens
        self._usage["completion_tokens"] += reply.completion_tokens
        self._messages.append({"role": "assistant", "content": reply.text})
        return reply.text, reply.completion_tokens

    def tell(self, message: Message) -> None:
        """Append the message, or begin anew with what is kept."""
        self._messages.append(_user(message.text))
        if message.cut is not None:
            kept = self._messages[len(self._messages) - 2 * message.cut.keep :]
            self._messages = [*self._system, _user(message.cut.opening), *kept]
            self._used = 0

    async def end(self) -> list[Tokens]:
        """An endpoint gives no token ids."""
        return []

    def used(self) -> dict[str, int]:
        """What the endpoint counted."""
        return dict(self._usage)


def chat_actors(
    endpoint: ChatEndpoint,
    sampling: ChatSampling,
    *,
    instruction: str,
    action_format: ActionFormat,
    agent: str = "plain",
) -> ActorFactory:
    """A maker of players who speak with one endpoint."""
    new_agent = agent_factory(agent, action_format)
    name = f"openai:{endpoint.settings.model}"
    return lambda: ChatActor(
        endpoint, sampling, agent=new_agent(), instruction=instruction, name=name
    )


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
