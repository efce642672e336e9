"""Black-box agents that play through a gateway: `command:`, `callable:` and `external`.

They are entry points of the group `agentgym.agents`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentgym_env.entry_points import load_named
from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.tools import ToolSpec
from agentgym_gateway.actor import GatewayActor
from agentgym_gateway.programs import Called, Command, Elsewhere, Program
from agentgym_gateway.server import Gateway
from agentgym_gateway.settings import GatewaySettings
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import GenerationEngine
from agentgym_train.rollout.black_box import BlackBox, BlackBoxConnection
from agentgym_train.rollout.run_episode import EpisodeActorFactory


class GatewayAgent(BlackBox):
    """An agent that reaches policy and environment by a gateway."""

    written: ClassVar[str]
    """How a config names it; with a colon if it has a target: `command:PROGRAM ARGUMENTS`."""
    offers: ClassVar[bool] = False
    """Whether a program elsewhere takes the episodes."""

    def __init__(self, target: str, settings: Mapping[str, Any]) -> None:
        super().__init__(target, settings)
        self.settings = GatewaySettings.from_values(settings)
        kind, has_target, _ = self.written.partition(":")
        if bool(target) != bool(has_target):
            given = f"{kind}:{target}" if target else kind
            raise ConfigError(
                f"agent {given[:80]!r} is incomplete or has too much; write `{self.written}`"
            )

    def program(self) -> Program:
        """What plays an episode; raises `ConfigError` if it does not exist.

        It is called once the model is loaded.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `program`")

    def connect(
        self,
        engine: GenerationEngine,
        tokenizer: Any,
        config: PolicyConfig,
        end_ids: Collection[int] = (),
    ) -> GatewayConnection:
        """A gateway before the engine, which listens from the first episode on."""
        program = self.program()
        if isinstance(program, Command):
            program.check()
        elif not hasattr(program, "run"):
            raise ConfigError(
                f"`program` of {type(self).__name__} returned {program!r}, which has no `run`"
            )
        name = config.model.rstrip("/").rpartition("/")[2] or "policy"
        gateway = Gateway(
            engine, tokenizer, config, model=name, settings=self.settings, end_ids=end_ids
        )
        return GatewayConnection(gateway, program, self.offers)


class CommandAgent(GatewayAgent):
    """`command:PROGRAM ARGUMENTS`: a process for each episode."""

    written = "command:PROGRAM ARGUMENTS"

    def program(self) -> Program:
        """The command."""
        try:
            return Command(tuple(shlex.split(self.target)))
        except ValueError as error:
            raise ConfigError(f"no agent {self.target!r}: {error}") from error


class CallableAgent(GatewayAgent):
    """`callable:package.module:function`: a call for each episode."""

    written = "callable:package.module:function"

    def program(self) -> Program:
        """The imported function."""
        try:
            return Called(load_named(self.target))
        except (BadRequest, ImportError) as error:
            raise ConfigError(
                f"no agent {self.target!r}: {error}. It is package.module:function"
            ) from error


class ExternalAgent(GatewayAgent):
    """`external`: a program that somebody else starts, and that takes the episodes."""

    written = "external"
    offers = True

    def __init__(self, target: str, settings: Mapping[str, Any]) -> None:
        super().__init__(target, settings)
        if self.settings.address_file is None:
            raise ConfigError(
                "the agent external needs address_file: the file that tells a program elsewhere "
                "where to take episodes, such as `agent: {type: external, address_file: FILE}`"
            )

    def program(self) -> Program:
        """Waits."""
        return Elsewhere()


@dataclass(frozen=True, slots=True)
class GatewayConnection(BlackBoxConnection):
    """A gateway, and what starts the agents that use it."""

    gateway: Gateway
    program: Program
    offers: bool

    def actors(
        self, config: PolicyConfig, instruction: str, tools: Sequence[ToolSpec]
    ) -> EpisodeActorFactory:
        """A factory of actors; all calls of the gateway get the temperature of `config`."""
        self.gateway.temperature = config.temperature
        return lambda: GatewayActor(
            self.gateway, self.program, config.model, instruction, tools, self.offers
        )

    async def close(self) -> None:
        """End all episodes and stop listening."""
        await self.gateway.close()
