"""The environments of a training run, which share an event loop and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from agentgym_env.server_token import token_of_file
from agentgym_train.config.learn import AgentEvolConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.worlds import RLWorld, World
from agentgym_train.event_loop import LoopRunner
from agentgym_train.rollout.limits import ConcurrencyLimits, RolloutLimits
from agentgym_train.rollout.runner import RolloutRunner


class Worlds(AbstractContextManager["Worlds"]):
    """A `RolloutRunner` per environment. They share an event loop, so one engine serves all."""

    def __init__(self, config: AgentEvolConfig | RLConfig, processes: int = 1) -> None:
        """Raises an error if an environment, its server or a split is not available.

        In RL all environments are played at once, and share `concurrency`.
        """
        self._open = ExitStack()
        runner = self._open.enter_context(LoopRunner())
        self.concurrency_limits = ConcurrencyLimits(limits_of(config))
        worlds: Sequence[World | RLWorld] = config.worlds
        at_once = len(worlds) if isinstance(config, RLConfig) else 1
        self._rollout_runners: list[tuple[Any, RolloutRunner]] = []
        try:
            for world in worlds:
                wrappers = world.wrappers if isinstance(world, RLWorld) else config.wrappers
                rollout_runner = RolloutRunner(
                    world.env,
                    world.servers,
                    token=token_of_file(config.token_file) if world.servers else None,
                    env_kwargs=world.env_kwargs,
                    concurrency=max(1, config.concurrency // at_once),
                    processes=processes,
                    limits=self.concurrency_limits,
                    runner=runner,
                    wrappers=wrappers or (),
                )
                self._open.enter_context(rollout_runner)
                for split in (world.split, world.eval_split):
                    rollout_runner.tasks.split(split)
                self._rollout_runners.append((world, rollout_runner))
        except BaseException:
            self._open.close()
            raise
        first = self._rollout_runners[0][1]
        self.run = first.run
        """Runs a coroutine on the shared event loop."""
        self.stop = first.stop
        """Cancels the coroutine that another thread runs, if any."""
        self.card = first.card
        """That of the first environment."""

    def __iter__(self) -> Iterator[tuple[Any, RolloutRunner]]:
        """(`RLWorld` of RL or `World` of AgentEvol, runner) of each environment."""
        return iter(self._rollout_runners)

    def close(self) -> None:
        """Close the servers, then the event loop."""
        self._open.close()

    def __exit__(self, *error: object) -> None:
        self.close()


Stage = RolloutRunner | Worlds | None
"""What a run plays in: one environment, several, or none."""


def limits_of(config: RunConfig) -> RolloutLimits:
    """Limits of the episodes of one process."""
    return RolloutLimits(
        engine_concurrency=config.engine_concurrency,
        env_concurrency=config.env_concurrency,
        episode_timeout_s=config.episode_timeout_s,
        retries=config.retries,
    )
