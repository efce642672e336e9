"""Rollouts without sockets: a host in this process, and engines that answer when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentgym_env.client.aio import AsyncEnvClient
from agentgym_env.client.transports import Answer, AsyncInProcessTransport, Call
from agentgym_train.config.policy import PolicyConfig, RolloutLimits
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.rollout.actors import ActorFactory
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.limits import ConcurrencyLimits
from agentgym_train.rollout.loop import Rollouts
from agentgym_train.rollout.model_actors import model_actor
from tests.train.templates import APPEND_ONLY, tokenizer_with

Answers = Callable[[str, int], str]


class Waiting(ScriptedEngine):
    """Says `answer(prompt, turn)`; a turn for which `wait` gives an event waits for it first."""

    def __init__(self, answer: Answers, wait: Callable[[str, int], asyncio.Event | None]) -> None:
        self.chat = Chat(tokenizer_with(APPEND_ONLY["chatml"]))
        self._wait = wait
        self.under_way = self.most = 0
        super().__init__(
            lambda prompt, turn: self.chat.response_ids(answer(self._text(prompt), turn))
        )

    def _text(self, ids: Any) -> str:
        return str(self.chat._tokenizer.decode(list(ids)))

    async def generate(self, prompt_ids: Any, sampling: Any, conversation: Any = None) -> Any:
        """Answer when it is time."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            turn = self._turns.get(conversation, 0)
            self.live.add(conversation)
            event = self._wait(self._text(prompt_ids), turn)
            await asyncio.sleep(0) if event is None else await event.wait()
            return await super().generate(prompt_ids, sampling, conversation)
        finally:
            self.under_way -= 1

    def actors(self) -> ActorFactory:
        """Players who speak with it."""
        config = PolicyConfig(model="waiting", turn_max_tokens=64, max_tokens=4096)
        return model_actor(self, self.chat, config)


class SilentWorld(AsyncInProcessTransport):
    """A host that never answers a step."""

    steps = 0

    async def send(self, call: Call) -> Answer:
        """Everything but a step."""
        if call.path.startswith("/v1/step"):
            SilentWorld.steps += 1
            await asyncio.Event().wait()
        return await super().send(call)


class Leaping(asyncio.SelectorEventLoop):
    """An event loop whose clock leaps to the next timer: only waiting takes time."""

    now = 0.0

    def time(self) -> float:
        """The clock."""
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0].when())
        super()._run_once()


def rollouts(host: Any, actors: Any, *, concurrency: int = 256, transport: Any = None,
             **limits: Any) -> Rollouts:  # fmt: skip
    """Rollouts on a host in this process."""
    client = AsyncEnvClient((transport or AsyncInProcessTransport)(host))
    return Rollouts(
        client, actors, env_id="tests/Guess-v0", concurrency=concurrency,
        concurrency_limits=ConcurrencyLimits(RolloutLimits(**limits)),
    )  # fmt: skip
