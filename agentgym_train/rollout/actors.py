"""Actors: a model, an oracle or chance, each answering an environment's observations."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agentgym_env.actions import ActionError, ActionFormat
from agentgym_env.client.aio import AsyncSession
from agentgym_env.errors import BadRequest, ConfigError, Outcome
from agentgym_env.tools import ACT, ToolSpec
from agentgym_env.trajectory import Tokens
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import Generation, GenerationEngine, Sampling
from agentgym_train.engines.openai import ChatEndpoint, ContextFull
from agentgym_train.rollout.agent import Agent, AgentFactory, Message, agent_factory
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.tool_calls import (
    SYNTAXES,
    PlannedCall,
    ToolCalls,
    ToolFormat,
    ToolResult,
    write_hermes,
    written_calls,
)


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
    trained: bool = True
    """False for a turn that is only context for those who learn from the episode."""
    thought: str = ""
    """Why, if the policy is an oracle that says so."""
    cut: bool = False
    """Whether the response ended at `turn_max_tokens`."""


class Actor(Protocol):
    """Acts in one episode."""

    name: str
    trials: int = 1
    """Trials that an episode is planned for; they share its horizon."""
    was_cut: bool = False
    """Whether the last sampled turn ended at `turn_max_tokens`."""

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Receive the first observation. `seed` is for the actor's own sampling."""
        ...

    async def act(self) -> ActorOutput | None:
        """The next turn; None when the token budget is used up."""
        ...

    async def observe(self, observation: str, results: Sequence[str] = ()) -> None:
        """Receive the observation after the last action; of tool calls also each one's result."""
        ...

    async def adopt(self, output: ActorOutput) -> None:
        """Another policy takes this turn; continue as if the action were the actor's own."""
        return

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
        self._calls: tuple[PlannedCall, ...] = ()

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
            action = self.agent.format.parse(text)
            self._calls = action.calls if isinstance(action, ToolCalls) else ()
            return ActorOutput(text, action, tokens=tokens, cut=self.was_cut)
        message = self.agent.after_non_action(text)
        self._send(message)
        return ActorOutput(text, None, message.text, tokens, cut=self.was_cut)

    async def adopt(self, output: ActorOutput) -> None:
        """Put another policy's action into the conversation, in the agent's format."""
        if not self._acts or output.action is None:
            raise ConfigError(
                f"the agent {type(self.agent).__name__} requests a turn without an action, which "
                "another policy cannot take; mix policies with the agent plain, react or window"
            )
        action, form = output.action, self.agent.format
        text = output.response
        if isinstance(action, str) and action and not _has_problem(action):
            # What no tool gives stays as it is: a wrong action, as the policy's own may be.
            with suppress(BadRequest):
                text = form.render(action, output.thought)
        parsed = form.parse(text)
        self._calls = parsed.calls if isinstance(parsed, ToolCalls) else ()
        self.insert(text)

    async def observe(self, observation: str, results: Sequence[str] = ()) -> None:
        """Send the agent's message about the observation."""
        message = self.agent.observed(observation)
        if message.text != observation or len(results) != len(self._calls):
            results = [message.text] * min(1, len(self._calls))
        given = zip(self._calls, results, strict=False)
        self._send(message, [ToolResult(call.name, text) for call, text in given])

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

    def _send(self, message: Message, results: Sequence[ToolResult] = ()) -> None:
        self._acts = message.acts
        self.append(message, results)

    def open(self, text: str, seed: int) -> None:
        """Start a conversation with its first message. `seed` is for this episode's sampling."""
        raise NotImplementedError

    async def sample(self) -> tuple[str, int] | None:
        """The text of the next turn and its number of tokens; None if no tokens are left."""
        raise NotImplementedError

    def insert(self, text: str) -> None:
        """Append a response that was not sampled here."""
        raise NotImplementedError

    def append(self, message: Message, results: Sequence[ToolResult] = ()) -> None:
        """Append a message to the context, or start the new context that it requests.

        With tools, `results` are what the message says about each call.
        """
        raise NotImplementedError


def _has_problem(action: str) -> bool:
    """Whether a call of the response cannot be carried out."""
    return isinstance(action, ToolCalls) and any(call.action is None for call in action.calls)


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


class ExpertActor(Actor):
    """The environment's own expert, which writes its actions and thoughts in a format."""

    name = "expert"

    def __init__(self, form: ActionFormat | None = None) -> None:
        """Without `form` a response is the action alone."""
        self._session: AsyncSession | None = None
        self._form = form

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Keep the session."""
        self._session = session

    async def act(self) -> ActorOutput | None:
        """The expert's action; None if it has none."""
        reply = await self._session.expert() if self._session else None
        if reply is None or reply.action is None:
            return None
        text = self._form.render(reply.action, reply.thought) if self._form else reply.action
        return ActorOutput(text, reply.action, thought=reply.thought)

    async def observe(self, observation: str, results: Sequence[str] = ()) -> None:
        """The expert reads the environment itself."""

    async def end(self) -> list[Tokens]:
        """No tokens are sampled."""
        return []


class RandomActor(Actor):
    """A random available action; a short random text if the environment lists none."""

    name = "random"

    def __init__(self, form: ActionFormat | None = None) -> None:
        """Without `form` a response is the action alone."""
        self._session: AsyncSession | None = None
        self._draws = random.Random(0)
        self._form = form

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
        return ActorOutput(self._form.render(action) if self._form else action, action)

    async def observe(self, observation: str, results: Sequence[str] = ()) -> None:
        """Observations are ignored."""

    async def end(self) -> list[Tokens]:
        """No tokens are sampled."""
        return []


class MixedActor(Actor):
    """One policy, and in some turns another one, whose turns are context for those who learn.

    The other policy leads into states that the first would not reach, from which the first shows
    the way: with random actions as in DART (arXiv:1703.09327), with the learner as in DAgger
    (arXiv:1011.0686). No token ids are stored.
    """

    def __init__(self, main: Actor, other: Actor, rate: float, form: ActionFormat) -> None:
        """`rate` is the probability that a turn is the other policy's; `form` writes actions."""
        self.name = f"{main.name}, {rate:g} {other.name}"
        self._main, self._other, self._rate, self._form = main, other, rate, form
        self._draws = random.Random(0)

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Begin with both."""
        self._draws = random.Random(f"mix/{seed}")
        for actor in (self._main, self._other):
            await actor.begin(session, observation, seed)

    async def act(self) -> ActorOutput | None:
        """The turn of one of them, which the other continues from."""
        if self._draws.random() < self._rate:
            output = await self._other.act()
            if output is not None:
                output = replace(output, trained=False)
                await self._main.adopt(output)
                return self._written(output)
        output = await self._main.act()
        if output is None:
            return None
        await self._other.adopt(output)
        return self._written(output)

    def _written(self, output: ActorOutput) -> ActorOutput:
        """The output with the action in the action format, if it is the whole response."""
        models = (actor for actor in (self._main, self._other) if isinstance(actor, AgentActor))
        form = next((actor.agent.format for actor in models), self._form)
        if isinstance(output.action, str) and output.response == output.action:
            with suppress(BadRequest):  # noise need not be an action of the format
                return replace(output, response=form.render(output.action, output.thought))
        return output

    async def observe(self, observation: str, results: Sequence[str] = ()) -> None:
        """Both receive the observation."""
        for actor in (self._main, self._other):
            await actor.observe(observation, results)

    async def end(self) -> list[Tokens]:
        """End both; rows would have turns of two policies."""
        for actor in (self._main, self._other):
            await actor.end()
        return []

    def used(self) -> dict[str, int]:
        """Token usage of both."""
        return dict(Counter(self._main.used()) + Counter(self._other.used()))


def model_actor(
    engine: GenerationEngine,
    chat: Chat,
    config: PolicyConfig,
    new_agent: AgentFactory | None = None,
) -> ActorFactory:
    """Makes actors of one model, each with an agent of the config's or of `new_agent`."""
    make_agent = new_agent or agent_factory(config.agent, chat.form(config.form))
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
