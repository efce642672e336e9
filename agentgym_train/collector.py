"""Collector: rollouts for code that is not asynchronous; owns the event loop, client and server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from agentgym_env.async_client import AsyncEnvClient
from agentgym_env.launch import LocalServer, local_server
from agentgym_env.task_set import TaskSet
from agentgym_env.trajectory import Trajectory
from agentgym_env.wire import EnvCard
from agentgym_train.players import PlayerFactory
from agentgym_train.rollout import EpisodeStart, Rollouts

_T = TypeVar("_T")


class Collector:
    """Plays episodes of one environment, on running servers or on a local one of its own."""

    def __init__(self, env_id: str, servers: Sequence[str] = (), *, concurrency: int = 256) -> None:
        self.env_id = env_id
        self.server: LocalServer | None = None if servers else local_server(env_id)
        addresses = [self.server.address] if self.server else list(servers)
        self._concurrency = concurrency
        # One loop for the whole run: connections and engines belong to the loop they began in.
        self._runner = asyncio.Runner()
        self._client = AsyncEnvClient(addresses)
        self.card: EnvCard = self.run(self._client.card())
        self.tasks: TaskSet = self.run(self._client.task_set())

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end on the collector's loop."""
        return self._runner.run(work)

    def collect(
        self,
        new_player: PlayerFactory,
        starts: Sequence[EpisodeStart],
        horizon: int,
        *,
        step: int = -1,
        instruction: str = "",
        on_episode: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Play every start for at most `horizon` turns; the trajectories come in its order."""
        rollouts = Rollouts(
            self._client,
            new_player,
            env_id=self.env_id,
            instruction=instruction,
            concurrency=self._concurrency,
        )
        return self.run(rollouts.collect(starts, horizon, step=step, on_episode=on_episode))

    def close(self) -> None:
        """End connections, the loop and the local server."""
        self.run(self._client.close())
        self._runner.close()
        if self.server is not None:
            self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
