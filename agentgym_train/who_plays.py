"""WhoPlays: a policy that is named on a command line, ready to play."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from agentgym_train.agents import agent_factory, format_of
from agentgym_train.chat_player import ChatSampling, chat_players
from agentgym_train.engines.openai_chat import ChatEndpoint, EndpointSettings, usage_dict
from agentgym_train.engines.settings import HFSettings
from agentgym_train.players import ExpertPlayer, PlayerFactory, RandomPlayer
from agentgym_train.policy_names import PolicyName, parse_policy

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass(slots=True)
class WhoPlays:
    """A policy as `policy_names` reads it; a model is loaded when it is to play."""

    policy: str
    temperature: float
    action_format: str
    agent: str
    turn_max_tokens: int
    max_tokens: int
    api_key: str | None = field(default=None, repr=False)
    tokenizer: str | None = None
    """Of a vLLM server's model, where it is not to be found under the server's own name for it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What a model computes in; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    concurrency: int = 16
    """Most requests at once to an endpoint."""
    requests_per_minute: float = 0.0
    """To an endpoint; 0 is no limit."""
    tokens_per_minute: float = 0.0
    """Of an endpoint, prompts included; 0 is no limit."""
    name: PolicyName = field(init=False)
    _endpoint: ChatEndpoint | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        agent_factory(self.agent, format_of(self.agent, self.action_format))
        self.name = parse_policy(self.policy)
        if self.name.kind == "openai":
            settings = EndpointSettings(
                self.name.model,
                self.name.url,
                self.api_key,
                concurrency=self.concurrency,
                requests_per_minute=self.requests_per_minute,
                tokens_per_minute=self.tokens_per_minute,
            )
            self._endpoint = ChatEndpoint(settings)

    @contextmanager
    def players(self, instruction: str, run: Run) -> Iterator[PlayerFactory]:
        """A maker of players. `run` runs a coroutine on the loop on which they play."""
        if self.name.kind == "expert":
            yield ExpertPlayer
        elif self.name.kind == "random":
            yield RandomPlayer
        elif self._endpoint is not None:
            try:
                yield self._chat_players(self._endpoint, instruction)
            finally:
                run(self._endpoint.close())
        elif self.name.kind == "vllm":
            yield from self._served_players(instruction, run)
        else:
            yield from self._model_players(instruction, run)

    def used(self) -> dict[str, int]:
        """What an endpoint counted so far, whatever came of it."""
        return {} if self._endpoint is None else usage_dict(self._endpoint.usage)

    def _chat_players(self, endpoint: ChatEndpoint, instruction: str) -> PlayerFactory:
        form = format_of(self.agent, self.action_format)
        return chat_players(
            endpoint,
            ChatSampling(self.turn_max_tokens, self.max_tokens, self.temperature),
            instruction="\n\n".join(part for part in (instruction, form.instructions) if part),
            action_format=form,
            agent=self.agent,
        )

    def _model_players(self, instruction: str, run: Run) -> Iterator[PlayerFactory]:
        from agentgym_train.hub import check_available

        check_available(self.name.model)
        import torch

        from agentgym_train.policy import make_policy
        from agentgym_train.quiet import quiet_libraries

        quiet_libraries()
        policy = make_policy(
            self.name.model,
            instruction=instruction,
            format_name=self.action_format,
            turn_max_tokens=self.turn_max_tokens,
            max_tokens=self.max_tokens,
            agent=self.agent,
            engine=HFSettings(settle_ties=True),
            compute_dtype=None if self.dtype == "auto" else self.dtype,
        )
        if torch.cuda.is_available():
            policy.model.to("cuda")
        try:
            yield policy.players(self.temperature)
        finally:
            run(policy.engine.close())

    def _served_players(self, instruction: str, run: Run) -> Iterator[PlayerFactory]:
        from agentgym_train.served_policy import served_players

        engine, players = served_players(
            self.name,
            instruction=instruction,
            format_name=self.action_format,
            turn_max_tokens=self.turn_max_tokens,
            max_tokens=self.max_tokens,
            agent=self.agent,
            temperature=self.temperature,
            tokenizer=self.tokenizer,
            api_key=self.api_key,
        )
        try:
            yield players
        finally:
            run(engine.close())
