"""The interface of generation engines: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol

from agentgym_train.config.engines import EngineSettings


class EngineLost(Exception):
    """The engine is gone; the episode that waited for it teaches nothing."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next turn is drawn."""

    max_tokens: int
    """Most tokens of this turn, its end token included."""
    temperature: float = 1.0
    """0 takes the likeliest token."""
    stop_ids: tuple[int, ...] = ()
    """Sampling stops after any of these; the stop id belongs to the response."""
    seed: int = 0
    """Of this turn's draws; the same seed, prompt and weights give the same turn."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled turn of n tokens."""

    token_ids: list[int]
    """(n,) sampled ids, the stop id included when one was drawn."""
    logprobs: list[float]
    """(n,) under the distribution that was sampled from (after the temperature)."""
    finish_reason: Literal["stop", "length"]
    version: int
    """Weight version the tokens were sampled with."""


class GenerationEngine(Protocol):
    """What a rollout needs from a model."""

    @property
    def is_exact(self) -> bool:
        """Whether it computes as the trainer does, so that its log-probabilities are the same."""
        ...

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        conversation: Hashable | None = None,
    ) -> Generation:
        """Sample one turn. `conversation` names the episode, so its KV cache can be kept."""
        ...

    async def forget(self, conversation: Hashable) -> None:
        """Drop what is kept for a conversation that ended."""
        ...

    async def update_weights(self, model: Any, version: int) -> None:
        """Use `model`'s present weights from now on; kept caches are dropped."""
        ...

    async def sleep(self) -> None:
        """Leave the device's memory to the trainer until the next update of the weights."""
        ...

    async def close(self) -> None:
        """End what the engine started; it is not used again."""
        ...


Script = Callable[[Sequence[int], int], Sequence[int]]


class ScriptedEngine:
    """Calls `script(prompt_ids, turn)` for the ids of each turn; turns count from 0.

    The script may raise, as a real engine may. Log-probabilities are -0.5 for every token.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._turns: dict[Hashable | None, int] = {}
        self.version = 0
        self.live: set[Hashable] = set()
        """Conversations that were not forgotten yet."""

    is_exact = True
    """It has no probabilities of its own."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        conversation: Hashable | None = None,
    ) -> Generation:
        """The script's ids, cut to the most tokens of a turn."""
        turn = self._turns.get(conversation, 0)
        self._turns[conversation] = turn + 1
        if conversation is not None:
            self.live.add(conversation)
        ids = list(self._script(prompt_ids, turn))[: sampling.max_tokens]
        stopped = bool(ids) and ids[-1] in sampling.stop_ids
        return Generation(ids, [-0.5] * len(ids), "stop" if stopped else "length", self.version)

    async def forget(self, conversation: Hashable) -> None:
        """Forget how many turns the conversation had."""
        self._turns.pop(conversation, None)
        self.live.discard(conversation)

    async def update_weights(self, model: Any, version: int) -> None:
        """Only the version changes."""
        self.version = version

    async def sleep(self) -> None:
        """It holds no memory."""

    async def close(self) -> None:
        """It started nothing."""


def make_engine(
    settings: EngineSettings,
    model: Any,
    *,
    pad_id: int,
    max_tokens: int,
    dtype: str | None = None,
) -> GenerationEngine:
    """An engine that samples as `model` does, in conversations of at most `max_tokens`.

    `dtype` is the data type in which the hf engine computes. Raises `MissingExtra` if vLLM is
    requested and not installed. A collective.
    """
    make = import_module(settings.MODULE).make_engine
    engine: GenerationEngine = make(
        settings, model, pad_id=pad_id, max_tokens=max_tokens, dtype=dtype
    )
    return engine
