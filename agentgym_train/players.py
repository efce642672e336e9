"""Players: what answers a world's observations: a model, the oracle, or chance."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agentgym_env.actions import ActionError, ActionFormat
from agentgym_env.async_client import AsyncSession
from agentgym_env.errors import BadRequest
from agentgym_env.failures import Outcome
from agentgym_env.trajectory import Tokens
from agentgym_train.chat import Chat
from agentgym_train.engines.protocol import GenerationEngine, Sampling
from agentgym_train.episode import EpisodeTokens


@dataclass(frozen=True, slots=True)
class Move:
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


class Player(Protocol):
    """Plays one episode; made anew for each."""

    name: str

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Take in the first observation. `seed` is of this player's own draws."""
        ...

    async def act(self) -> Move | None:
        """The next move; None when the token budget is used up."""
        ...

    async def observe(self, observation: str) -> None:
        """Take in the world's answer to the last move."""
        ...

    async def lesson(self, outcome: Outcome) -> str | None:
        """What the player takes from this trial into another; None if there is to be no other."""
        return None

    async def begin_again(self, observation: str) -> None:
        """Take in the first observation of another trial."""
        raise BadRequest(f"the player {self.name} plays an episode once")

    async def end(self) -> list[Tokens]:
        """The episode is over: release what is held, and give its rows of tokens."""
        ...


PlayerFactory = Callable[[], Player]


class ModelPlayer(Player):
    """A model: observations become ids by a `Chat`, turns are sampled by an engine."""

    def __init__(
        self,
        engine: GenerationEngine,
        chat: Chat,
        sampling: Sampling,
        *,
        max_tokens: int,
        action_format: ActionFormat,
        name: str,
    ) -> None:
        self.name = name
        self._engine = engine
        self._chat = chat
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._format = action_format
        self._conversation = object()
        self._tokens = EpisodeTokens([])
        self._draws = random.Random(0)

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Encode the first prompt."""
        self._tokens = EpisodeTokens(self._chat.start(observation))
        self._draws = random.Random(seed)

    async def act(self) -> Move | None:
        """Sample one turn, as long as the episode's budget leaves room for a token."""
        ids = self._tokens.ids
        room = min(self._sampling.max_tokens, self._max_tokens - len(ids))
        if room < 1:
            return None
        sampling = Sampling(
            max_tokens=room,
            temperature=self._sampling.temperature,
            stop_ids=self._chat.stop_ids,
            seed=self._draws.getrandbits(63),
        )
        generation = await self._engine.generate(ids, sampling, self._conversation)
        self._tokens.add_response(generation)
        text = self._chat.text_of(generation.token_ids)
        return Move(text, self._format.parse(text), tokens=len(generation.token_ids))

    async def observe(self, observation: str) -> None:
        """Append the observation's delta."""
        start = self._tokens.turn_ends[-2] if len(self._tokens.turn_ends) > 1 else 0
        last = self._tokens.completion_ids[start : self._tokens.turn_ends[-1]]
        self._tokens.add_observation(self._chat.delta(last, observation))

    async def end(self) -> list[Tokens]:
        """Let the engine drop the conversation's cache."""
        await self._engine.forget(self._conversation)
        return [self._tokens.freeze()]


class ExpertPlayer(Player):
    """The world's own oracle."""

    name = "expert"

    def __init__(self) -> None:
        self._session: AsyncSession | None = None

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Remember whom to ask."""
        self._session = session

    async def act(self) -> Move | None:
        """The oracle's action; None when it gives up."""
        action = await self._session.expert_action() if self._session else None
        return None if action is None else Move(action, action)

    async def observe(self, observation: str) -> None:
        """The oracle reads the world itself."""

    async def end(self) -> list[Tokens]:
        """There are no tokens."""
        return []


class RandomPlayer(Player):
    """One of the available actions at random; where the world lists none, a random short text."""

    name = "random"

    def __init__(self) -> None:
        self._session: AsyncSession | None = None
        self._draws = random.Random(0)

    async def begin(self, session: AsyncSession, observation: str, seed: int) -> None:
        """Remember whom to ask, and seed the draws."""
        self._session = session
        self._draws = random.Random(seed)

    async def act(self) -> Move | None:
        """Draw an action."""
        actions = await self._session.available_actions() if self._session else None
        if actions:
            action = actions[int(self._draws.random() * len(actions))]
        else:
            action = "".join(self._draws.choice("abcdefghij 0123456789") for _ in range(12))
        return Move(action, action)

    async def observe(self, observation: str) -> None:
        """Chance learns nothing."""

    async def end(self) -> list[Tokens]:
        """There are no tokens."""
        return []


def model_player(
    engine: GenerationEngine,
    chat: Chat,
    sampling: Sampling,
    *,
    max_tokens: int,
    policy: str,
    action_format: ActionFormat,
) -> PlayerFactory:
    """A maker of players for one model. `max_tokens` bounds prompt and completion of an episode."""
    return lambda: ModelPlayer(
        engine, chat, sampling, max_tokens=max_tokens, action_format=action_format, name=policy
    )


def draw_seed(*parts: object) -> int:
    """A 63-bit seed out of anything that prints the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
