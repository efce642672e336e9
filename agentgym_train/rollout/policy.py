"""Policy: a model with its tokenizer, chat and engine, ready for rollouts and training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import AgentGymError, ConfigError
from agentgym_env.tools import ToolSpec
from agentgym_env.wire import EnvCard
from agentgym_train.config.checks import imported, type_of
from agentgym_train.config.engines import (
    ColocateSettings,
    EngineSettings,
    HFSettings,
    OwnEngine,
    ServerSettings,
)
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import GenerationEngine
from agentgym_train.models.loading import end_ids, load_policy
from agentgym_train.models.positions import positions_of, within
from agentgym_train.rollout.agent import AgentFactory, black_box
from agentgym_train.rollout.chat import Chat, chat_of
from agentgym_train.rollout.model_actors import model_actor
from agentgym_train.rollout.run_episode import EpisodeActorFactory

if TYPE_CHECKING:
    from agentgym_train.rollout.black_box import BlackBox, BlackBoxConnection

_ENGINES: Final[Mapping[type, str]] = {
    HFSettings: "agentgym_train.engines.hf.engine",
    ColocateSettings: "agentgym_train.engines.vllm.colocate",
    ServerSettings: "agentgym_train.engines.vllm.server",
}
"""Settings -> the module with `make_engine(settings, model, ...)`, which is loaded when needed."""
_METHODS: Final = (
    "generate", "update_weights", "keep_own_weights", "forget", "sleep", "close", "is_exact",
)  # fmt: skip
_DECLARED: Final = ("generate", "update_weights")
"""Those of them that `GenerationEngine` does not define."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A loaded model with the tokenizer, chat and engine that its `PolicyConfig` describes."""

    config: PolicyConfig
    model: Any
    tokenizer: Any
    chat: Chat
    engine: GenerationEngine
    instruction: str
    """The complete system prompt, including the instructions of the action format."""
    new_agent: AgentFactory | None = None
    """Makes an agent per episode; None makes the agent of the config."""
    tools: Sequence[ToolSpec] = ()
    """The environment's tools."""
    black_box: BlackBoxConnection | None = None
    """What makes the actors of a black-box agent; None for other agents."""

    @property
    def action_format(self) -> ActionFormat:
        """How the policy writes an action."""
        return self.chat.form(self.config.form)

    def actors(
        self, temperature: float | None = None, name: str | None = None
    ) -> EpisodeActorFactory:
        """A factory of actors, one per episode.

        `temperature` overrides the config's, and `name` the model's in what they record.
        """
        # Of a run's config only the policy's: the run's own checks do not apply to an evaluation.
        config = PolicyConfig(
            **{f.name: getattr(self.config, f.name) for f in fields(PolicyConfig)}
        )
        if name is not None:
            config = replace(config, model=name)
        if temperature is not None:
            config = replace(config, temperature=temperature)
        if self.black_box is not None:
            return self.black_box.actors(config, self.instruction, self.tools)
        return model_actor(self.engine, self.chat, config, self.new_agent)

    async def close(self) -> None:
        """Close the black-box agent, if there is one, and the engine."""
        if self.black_box is not None:
            await self.black_box.close()
        await self.engine.close()

    def in_environment(self, card: EnvCard, instruction: str | None = None) -> Policy:
        """The same policy in an environment, whose own instruction `instruction` overrides."""
        config = self.config
        if instruction is not None:
            config = replace(config, instruction=instruction)
        prompt = config.system_prompt(card.instruction)
        chat = chat_of(config, self.tokenizer, prompt, card.tools, self.chat.end_ids)
        return replace(self, chat=chat, instruction=prompt, tools=card.tools)


def make_policy(
    config: PolicyConfig,
    *,
    env_instruction: str = "",
    tools: Sequence[ToolSpec] = (),
    engine: EngineSettings | None = None,
) -> Policy:
    """Load a model from a folder or the hub and create its engine.

    `env_instruction` is the environment's instruction, which the config may override, and `tools`
    are its tools, for the action format `tools`. `engine` are settings instead of the config's.
    """
    model, tokenizer = load_policy(config.model, config.dtype)
    return policy_of(
        config, model, tokenizer, env_instruction=env_instruction, tools=tools, engine=engine
    )


def policy_of(
    config: PolicyConfig,
    model: Any,
    tokenizer: Any,
    *,
    env_instruction: str = "",
    tools: Sequence[ToolSpec] = (),
    engine: EngineSettings | None = None,
) -> Policy:
    """A policy from a loaded model, with a new engine; its `max_tokens` fits the model."""
    config = within(config, positions_of(model.config))
    made = make_engine(
        engine or config.engine_settings(),
        model,
        tokenizer,
        max_tokens=config.max_tokens,
        dtype=config.compute_dtype,
    )
    ends = end_ids(model.generation_config)
    return assembled(config, model, tokenizer, made, ends, env_instruction, tools)


def assembled(
    config: PolicyConfig,
    model: Any,
    tokenizer: Any,
    engine: GenerationEngine,
    end_ids: Collection[int],
    env_instruction: str,
    tools: Sequence[ToolSpec],
) -> Policy:
    """A policy from its parts, with its chat and its black-box agent, if it has one.

    `end_ids` are the model's own end tokens.
    """
    prompt = config.system_prompt(env_instruction)
    return Policy(
        config=config,
        model=model,
        tokenizer=tokenizer,
        chat=chat_of(config, tokenizer, prompt, tools, end_ids),
        engine=engine,
        instruction=prompt,
        tools=tools,
        black_box=connected(engine, tokenizer, config, end_ids),
    )


async def give_weights(policy: Policy) -> None:
    """Give the model's weights to an engine that has a copy of its own."""
    is_own = type_of(policy.config.engine) == "hf"  # which samples from the model itself
    if policy.model is not None and not is_own:
        await policy.engine.update_weights(policy.model, 0)


def connected(
    engine: GenerationEngine, tokenizer: Any, config: PolicyConfig, end_ids: Collection[int] = ()
) -> BlackBoxConnection | None:
    """The black-box agent of a config with its engine; None for other agents.

    `end_ids` are the model's own end tokens. Raises `ConfigError` if it cannot be started.
    """
    agent: BlackBox | None = black_box(config.agent)
    if agent is None:
        return None
    try:
        return agent.connect(engine, tokenizer, config, end_ids)
    except AgentGymError:
        raise
    except Exception as error:
        # Code of another package may fail in any way.
        raise ConfigError(
            f"the agent {type_of(config.agent)} cannot be started: {type(error).__name__}: {error}"
        ) from error


def make_engine(
    settings: EngineSettings,
    model: Any,
    tokenizer: Any,
    *,
    max_tokens: int,
    dtype: str | None = None,
) -> GenerationEngine:
    """Make an engine for `model` and conversations of at most `max_tokens`.

    `dtype` is the compute data type of the hf engine. Raises `MissingExtra` if vLLM is requested
    but not installed. A collective: every process must call it.
    """
    if isinstance(settings, OwnEngine):
        return _own_engine(settings, model, tokenizer, max_tokens)
    make = import_module(_ENGINES[type(settings)]).make_engine
    engine: GenerationEngine = make(
        settings, model, pad_id=tokenizer.pad_token_id, max_tokens=max_tokens, dtype=dtype
    )
    return engine


def _own_engine(
    settings: OwnEngine, model: Any, tokenizer: Any, max_tokens: int
) -> GenerationEngine:
    """The user's engine, whose code may fail in any way."""
    kind = imported(settings.name, f"the engine {settings.name!r}")
    try:
        engine: GenerationEngine = kind(model, tokenizer, max_tokens=max_tokens, **settings.fields)
    except AgentGymError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the engine {settings.name} cannot be made: {type(error).__name__}: {error}. It is "
            "called as Class(model, tokenizer, max_tokens=N, **fields)"
        ) from error
    is_ours = GenerationEngine in getattr(kind, "__mro__", ())
    missing = [
        name
        for name in (_DECLARED if is_ours else _METHODS)
        if getattr(kind, name, None) is getattr(GenerationEngine, name) or not hasattr(engine, name)
    ]
    if missing:
        message = f"the engine {settings.name} has no {' and no '.join(missing)}"
        if not is_ours:
            message += (
                f"; write `class {settings.name.rpartition(':')[2]}(GenerationEngine)` with `from "
                "agentgym_train.engines.base import GenerationEngine`"
            )
        raise ConfigError(message)
    return engine
