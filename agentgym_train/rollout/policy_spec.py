"""A policy by name, and its actors; its model is loaded when they are made."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agentgym_env.tools import ToolSpec
from agentgym_train.config.engines import HFSettings, OwnEngine
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.rollout.actors import ExpertActor, RandomActor
from agentgym_train.rollout.policy_name import PolicyName, parse_policy
from agentgym_train.rollout.run_episode import EpisodeActorFactory

if TYPE_CHECKING:
    from agentgym_train.engines.openai import ChatEndpoint

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass(slots=True)
class PolicySpec:
    """A policy by name, such as `vllm:URL`; its model is loaded when `actors` is called."""

    config: PolicyConfig
    """`config.model` is the policy's name."""
    api_key: str | None = field(default=None, repr=False)
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer of a vLLM server; default: the model that it loaded."""
    concurrency: int = 16
    """Maximum concurrent requests to an endpoint."""
    requests_per_minute: float = 0.0
    """Rate limit of an endpoint; 0 is no limit."""
    tokens_per_minute: float = 0.0
    """Rate limit of an endpoint, including prompts; 0 is no limit."""
    name: PolicyName = field(init=False)
    _endpoint: ChatEndpoint | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.config.check_policy()
        self.name = parse_policy(self.config.model)
        if self.name.kind == "openai":
            from agentgym_train.engines.openai import ChatEndpoint, EndpointSettings

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
    def actors(
        self, instruction: str, run: Run, tools: Sequence[ToolSpec] = ()
    ) -> Iterator[EpisodeActorFactory]:
        """Make actors for an environment; `run` runs a coroutine on their loop."""
        form = self.config.form
        # Only a chat template can write tool calls.
        written = None if form.name == "tools" else form
        if self.name.kind == "expert":
            yield partial(ExpertActor, written)
        elif self.name.kind == "random":
            yield partial(RandomActor, written)
        elif self._endpoint is not None:
            from agentgym_train.rollout.chat_actors import chat_actors

            try:
                yield chat_actors(
                    self._endpoint, self.config, env_instruction=instruction, tools=tools
                )
            finally:
                run(self._endpoint.close())
        elif self.name.kind == "vllm":
            yield from self._served_actors(instruction, run, tools)
        else:
            yield from self._model_actors(instruction, run, tools)

    def used(self) -> dict[str, int]:
        """The endpoint's token and request counts so far, including failed requests."""
        return {} if self._endpoint is None else asdict(self._endpoint.usage)

    def _model_actors(
        self, instruction: str, run: Run, tools: Sequence[ToolSpec]
    ) -> Iterator[EpisodeActorFactory]:
        from agentgym_train.models.available import check_available

        check_available(self.name.model)
        import torch

        from agentgym_train.models.loading import quiet_libraries
        from agentgym_train.rollout.policy import give_weights, make_policy

        quiet_libraries()
        engine = self.config.engine_settings()
        if isinstance(engine, HFSettings) and engine.settle_ties is None:
            engine = replace(engine, settle_ties=True)
        policy = make_policy(
            replace(self.config, model=self.name.model),
            env_instruction=instruction,
            tools=tools,
            engine=engine,
        )
        # vLLM places its own copy.
        if isinstance(engine, HFSettings | OwnEngine) and torch.cuda.is_available():
            policy.model.to("cuda")
        try:
            run(give_weights(policy))
            yield policy.actors()
        finally:
            run(policy.close())

    def _served_actors(
        self, instruction: str, run: Run, tools: Sequence[ToolSpec]
    ) -> Iterator[EpisodeActorFactory]:
        from agentgym_train.rollout.served_policy import served_policy

        policy = served_policy(
            self.name,
            self.config,
            env_instruction=instruction,
            tools=tools,
            tokenizer=self.tokenizer,
            api_key=self.api_key,
        )
        try:
            yield policy.actors()
        finally:
            run(policy.close())
