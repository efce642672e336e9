"""Actors: what answers an environment's observations; an agent, the expert, chance or a mixture."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from agentgym_env.actions import ActionError, ActionFormat
from agentgym_env.client.aio import AsyncSession
from agentgym_env.errors import BadRequest, ConfigError, Outcome
from agentgym_env.trajectory import Tokens
from agentgym_train.rollout.agent import Agent, Message
from agentgym_train.rollout.tool_calls import PlannedCall, ToolCalls, ToolResult


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
        """The next turn; None ends the episode as `token_budget`, whatever there is none for."""
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
        message = self._accepted(self.agent.begin(observation))
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
        message = self._accepted(self.agent.after_non_action(text))
        self.append(message)
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
        message = self._accepted(self.agent.observed(observation))
        if message.text != observation or len(results) != len(self._calls):
            results = [message.text] * min(1, len(self._calls))
        given = zip(self._calls, results, strict=False)
        self.append(message, [ToolResult(call.name, text) for call, text in given])

    async def reflection(self, outcome: Outcome, observation: str) -> str | None:
        """The policy's answer to the agent's question, if it asks one."""
        message = self.agent.reflection(outcome, observation)
        if message is None:
            return None
        self.append(self._accepted(message))
        sampled = await self.sample()
        return None if sampled is None else sampled[0]

    async def begin_again(self, reflection: str, observation: str) -> None:
        """Start another trial with the reflection on the last one."""
        self.append(self._accepted(self.agent.begin_again(reflection, observation)))

    def _accepted(self, message: Message) -> Message:
        """What a method of the agent returned, which says whether the next response acts."""
        if not isinstance(message, Message):
            raise ConfigError(
                f"a method of the agent {type(self.agent).__name__} returned a "
                f"{type(message).__name__}; return a Message of agentgym_train.rollout.agent"
            )
        self._acts = message.acts
        return message

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
    """One policy, and in some turns another one, whose turns need not be trained on.

    The other policy leads into states that the first would not reach, from which the first shows
    the way: with random actions as in DART (arXiv:1703.09327), with the learner as in DAgger
    (arXiv:1011.0686). No token ids are stored.
    """

    def __init__(
        self, main: Actor, other: Actor, rate: float, form: ActionFormat, *, trained: bool = False
    ) -> None:
        """`rate` is the probability of a turn of `other`; `form` writes actions."""
        self.name = f"{main.name}, {rate:g} {other.name}"
        self._main, self._other, self._rate, self._form = main, other, rate, form
        self._trained = trained
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
                output = replace(output, trained=self._trained)
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


def draw_seed(*parts: object) -> int:
    """A 63-bit seed from values that print the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _has_problem(action: str) -> bool:
    """Whether a call of the response cannot be carried out."""
    return isinstance(action, ToolCalls) and any(call.action is None for call in action.calls)
