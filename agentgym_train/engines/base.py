"""The interface of generation engines: token ids in, token ids out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentgym_env.errors import ConfigError


class EngineLost(Exception):
    """The engine is not available; the episode is lost and not trained on."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one turn."""

    max_tokens: int
    """Maximum tokens of this turn, including its end token."""
    temperature: float = 1.0
    """0 is greedy decoding."""
    stop_ids: tuple[int, ...] = ()
    """Sampling stops after any of these; the stop id is part of the response."""
    seed: int = 0
    """Seed of this turn; the same seed, prompt and weights give the same turn."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled turn of n tokens."""

    token_ids: list[int]
    """(n,) sampled ids, including the stop id if one was sampled."""
    logprobs: list[float]
    """(n,) log-probabilities under the sampled distribution (after the temperature)."""
    finish_reason: Literal["stop", "length"]
    version: int
    """Version of the weights that sampled the tokens."""

    def is_cut_at(self, turn_max_tokens: int) -> bool:
        """Whether it ended at this limit, and not at a lower one of the episode."""
        return self.finish_reason == "length" and len(self.token_ids) >= turn_max_tokens


class GenerationEngine(Protocol):
    """Samples turns of conversations; the interface that rollouts use.

    A subclass defines `generate` and `update_weights`. A config names it by `engine:
    package.module:Class`, or `{type: package.module:Class, ...}` with further fields; it is made by
    `Class(model, tokenizer, max_tokens=N, **fields)`, where N are the tokens of a conversation.
    """

    @property
    def is_exact(self) -> bool:
        """Whether the engine's log-probabilities equal those of the trainer; by default not."""
        return False

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        conversation: Hashable | None = None,
    ) -> Generation:
        """Sample one turn. `conversation` identifies the episode, so its KV cache can be reused."""
        ...

    async def forget(self, conversation: Hashable) -> None:
        """Free the cache of a conversation that ended; by default there is none."""

    async def update_weights(self, model: Any, version: int) -> None:
        """Use `model`'s current weights from now on; KV caches are dropped."""
        ...

    def keep_own_weights(self) -> None:
        """Called if turns will be sampled while the trainer changes its weights (`max_policy_age`).

        An engine that has weights of its own, or copies them from now on, defines it.
        """
        raise ConfigError(
            f"{type(self).__name__} does not define keep_own_weights, so it may sample with the "
            "weights that the trainer changes meanwhile; set max_policy_age to 0"
        )

    async def sleep(self) -> None:
        """Free the device's memory until the next `update_weights`; by default nothing."""

    async def close(self) -> None:
        """Close the engine and what it started; by default nothing."""


Script = Callable[[Sequence[int], int], Sequence[int]]


class ScriptedEngine:
    """An engine for tests: `script(prompt_ids, turn)` returns the ids of each turn.

    Turns are counted from 0. The script may raise, as an engine may. All log-probabilities are
    -0.5.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._turns: dict[Hashable | None, int] = {}
        self.version = 0
        self.live: set[Hashable] = set()
        """Conversations that `forget` was not called for."""

    is_exact = True
    """It has no model, so there is nothing to correct."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        conversation: Hashable | None = None,
    ) -> Generation:
        """The script's ids, truncated to `sampling.max_tokens`."""
        turn = self._turns.get(conversation, 0)
        self._turns[conversation] = turn + 1
        if conversation is not None:
            self.live.add(conversation)
        ids = list(self._script(prompt_ids, turn))[: sampling.max_tokens]
        stopped = bool(ids) and ids[-1] in sampling.stop_ids
        return Generation(ids, [-0.5] * len(ids), "stop" if stopped else "length", self.version)

    async def forget(self, conversation: Hashable) -> None:
        """Remove the conversation's turn count."""
        self._turns.pop(conversation, None)
        self.live.discard(conversation)

    async def update_weights(self, model: Any, version: int) -> None:
        """Set the version."""
        self.version = version

    def keep_own_weights(self) -> None:
        """Does nothing: there are no weights."""

    async def sleep(self) -> None:
        """Does nothing: there is no memory to free."""

    async def close(self) -> None:
        """Does nothing: there is nothing to close."""


class UpdateGate:
    """An update waits for running turns; later turns wait for the update."""

    def __init__(self) -> None:
        self._turns = 0
        self._updating = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """While a turn is sampled."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._updating)
            self._turns += 1
        try:
            yield
        finally:
            # Without an await in between, so that a cancelled turn is subtracted too.
            self._turns -= 1
            await asyncio.shield(self._notify())

    @asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """While the weights change."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._updating)
            self._updating = True
            await self._changed.wait_for(lambda: self._turns == 0)
        try:
            yield
        finally:
            self._updating = False
            await asyncio.shield(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
