"""Policy: a model with its tokenizer, chat and engine, ready to play and to be trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import BadRequest
from agentgym_train.config.engines import EngineSettings, HFSettings
from agentgym_train.engines.base import GenerationEngine, Sampling
from agentgym_train.engines.factory import make_engine
from agentgym_train.engines.vllm_server import served_engine, served_model
from agentgym_train.models import load_policy
from agentgym_train.rollout.actors import ActorFactory, model_actor
from agentgym_train.rollout.agent import format_of
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.policy_spec import PolicyName


@dataclass(frozen=True, slots=True)
class Policy:
    """What plays: one model under one way of talking to it."""

    name: str
    model: Any
    tokenizer: Any
    chat: Chat
    engine: GenerationEngine
    action_format: ActionFormat
    instruction: str
    turn_max_tokens: int
    max_tokens: int
    agent: str = "plain"

    def actors(self, temperature: float) -> ActorFactory:
        """A maker of players that sample at `temperature`."""
        return model_actor(
            self.engine,
            self.chat,
            Sampling(self.turn_max_tokens, temperature),
            max_tokens=self.max_tokens,
            policy=self.name,
            action_format=self.action_format,
            agent=self.agent,
        )


def make_policy(
    name: str,
    *,
    instruction: str,
    format_name: str,
    turn_max_tokens: int,
    max_tokens: int,
    keep_reasoning: bool = False,
    agent: str = "plain",
    engine: EngineSettings | None = None,
    dtype: str = "float32",
    compute_dtype: str | None = None,
) -> Policy:
    """Load a model from a folder or the hub and make its engine, by default the transformers one.

    The format's own instructions follow the environment's. `dtype` is the weights'; the hf engine
    computes in `compute_dtype`, or in what suits the device.
    """
    model, tokenizer = load_policy(name, dtype)
    form = format_of(agent, format_name)
    told = "\n\n".join(part for part in (instruction, form.instructions) if part)
    return Policy(
        name=name,
        model=model,
        tokenizer=tokenizer,
        chat=Chat(tokenizer, told, keep_reasoning=keep_reasoning),
        engine=make_engine(
            engine or HFSettings(),
            model,
            pad_id=tokenizer.pad_token_id,
            max_tokens=max_tokens,
            dtype=compute_dtype,
        ),
        action_format=form,
        instruction=told,
        turn_max_tokens=turn_max_tokens,
        max_tokens=max_tokens,
        agent=agent,
    )


def served_actors(
    name: PolicyName,
    *,
    instruction: str,
    format_name: str,
    turn_max_tokens: int,
    max_tokens: int,
    agent: str,
    temperature: float,
    tokenizer: str | None = None,
    api_key: str | None = None,
) -> tuple[GenerationEngine, ActorFactory]:
    """(the engine, to be closed on the players' loop; a maker of players who sample by it).

    `tokenizer` is a folder or hub id, by default the one that the server loaded its model from.
    Raises `BadRequest` where the server or the tokenizer is not to be had.
    """
    served = served_model(name.url, model=name.model or None, api_key=api_key)
    loaded = _tokenizer(tokenizer or served.source, name)
    engine = served_engine(
        name.url, loaded, max_tokens=max_tokens, model=served.name, api_key=api_key
    )
    form = format_of(agent, format_name)
    told = "\n\n".join(part for part in (instruction, form.instructions) if part)
    actors = model_actor(
        engine,
        Chat(loaded, told),
        Sampling(turn_max_tokens, temperature),
        max_tokens=max_tokens,
        policy=f"vllm:{served.name}",
        action_format=form,
        agent=agent,
    )
    return engine, actors


def _tokenizer(source: str, name: PolicyName) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise BadRequest(
            f"{name.url} loaded its model from {source!r}, whose tokenizer is not to be had here "
            f"({str(error).splitlines()[0][:200]}); name a folder or hub id that has it: "
            "--tokenizer PATH_OR_ID"
        ) from error
