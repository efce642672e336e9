"""Black-box agents: programs of their own, which play whole episodes with a policy.

Each kind is an entry point of the group `agentgym.agents` whose object is a subclass of `BlackBox`:
`KIND = "module:Class"`. A config chooses it by `agent: KIND:TARGET`, or `agent: KIND`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentgym_env.tools import ToolSpec
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import GenerationEngine
from agentgym_train.rollout.run_episode import EpisodeActorFactory


class BlackBoxConnection:
    """A black-box agent with the engine that its policy samples from."""

    def actors(
        self, config: PolicyConfig, instruction: str, tools: Sequence[ToolSpec]
    ) -> EpisodeActorFactory:
        """Makes an actor per episode.

        `config` has the temperature, `instruction` is the complete system prompt, and `tools` are
        those of the environment.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Release what the actors used, but not the engine."""


class BlackBox:
    """A kind of black-box agent."""

    def __init__(self, target: str, settings: Mapping[str, Any]) -> None:
        """`target` follows the kind and a colon; `settings` are the further fields of `agent`.

        Raises `ConfigError` if one of them is invalid; starts and imports nothing that they name.
        """
        self.target = target

    def connect(
        self,
        engine: GenerationEngine,
        tokenizer: Any,
        config: PolicyConfig,
        end_ids: Collection[int] = (),
    ) -> BlackBoxConnection:
        """Prepare the agent for a policy; `end_ids` are the model's own end tokens.

        Raises `ConfigError` if the agent cannot be started.
        """
        raise NotImplementedError
