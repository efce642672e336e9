"""Runs rollouts from synchronous code; owns the event loop, the clients and the local servers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import msgspec
from rich.progress import Progress

from agentgym_env.client.aio import AsyncEnvClient, AsyncSession
from agentgym_env.errors import AgentGymError, ConfigError
from agentgym_env.launch import LocalServer, local_server
from agentgym_env.registry import full_id
from agentgym_env.server_token import NO_TOKEN
from agentgym_env.text_env import TaskSet
from agentgym_env.trajectory import Trajectory
from agentgym_env.wire import EnvCard
from agentgym_env.wrappers import WrapperSpec
from agentgym_train.config.policy import RolloutLimits
from agentgym_train.event_loop import LoopRunner
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.limits import ConcurrencyLimits
from agentgym_train.rollout.loop import OnEpisode, Rollouts
from agentgym_train.rollout.progress import ConcurrencyText, is_redrawn
from agentgym_train.rollout.run_episode import EpisodeActorFactory
from agentgym_train.rollout.wrapping import Wrapping

_T = TypeVar("_T")
_TIMEOUT_S = 300.0
"""Timeout of a batch of requests. A server that starts 64 JVMs needs most of a minute, and limits
each step itself."""
_REMEDY = (
    "make fewer calls at once (concurrency), or give servers the address of one that steps it in "
    "processes of its own: `agentgym serve --isolate`"
)


class RolloutRunner(AbstractContextManager["RolloutRunner"]):
    """Runs episodes of one environment, on running servers or on a local server that it starts."""

    def __init__(
        self,
        env_id: str,
        servers: Sequence[str] = (),
        *,
        token: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        concurrency: int = 256,
        processes: int = 1,
        limits: RolloutLimits | ConcurrencyLimits | None = None,
        runner: LoopRunner | asyncio.Runner | None = None,
        wrappers: Sequence[WrapperSpec] = (),
    ) -> None:
        """`processes` share `servers` and `concurrency`; each process starts its own local server.

        `token` is that of `servers`; None uses the environment variable `AGENTGYM_TOKEN`.
        RolloutRunners with the same `runner` share its event loop, and so can share an engine and
        `ConcurrencyLimits`.
        """
        if not isinstance(limits, ConcurrencyLimits):
            limits = ConcurrencyLimits(limits)
        self.concurrency_limits: ConcurrencyLimits = limits
        self._wrapping: Wrapping | None = None
        self._slots, self._most, self._busy = asyncio.Semaphore(0), 0, 0
        """What limits the concurrent episodes, to how many, and the calls that use it."""
        self._replacing = asyncio.Lock()
        self._left: list[AsyncEnvClient] = []
        """Clients of servers that died, which other episodes may still use."""
        if servers and env_kwargs:
            raise ConfigError(
                "env_kwargs are for a local server; give them to `agentgym serve --env-kwargs`"
            )
        self._env_kwargs = dict(env_kwargs or {})
        # An environment on a remote server need not be registered here.
        self.env_id = env_id if servers else full_id(env_id)
        self.server: LocalServer | None = None if servers else self._start_server()
        addresses = [self.server.address] if self.server else list(servers)
        # One loop for the whole run: connections and engines are bound to their first loop.
        self._shares_runner = runner is not None
        self._runner = runner or LoopRunner()
        self._client = self._new_client(addresses, NO_TOKEN if self.server else token)
        try:
            self.card: EnvCard = self.run(self._client.card())
            self.tasks: TaskSet = self.run(self._client.task_set())
            self._processes = processes
            self._wanted_concurrency = concurrency // processes
            if wrappers:
                self._wrapping = Wrapping(wrappers, self.card, self.tasks, self.concurrency)
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to completion on the event loop; call it from one thread at a time."""

        async def with_one_error() -> _T:
            try:
                return await work
            except ExceptionGroup as group:
                ours, others = group.split(AgentGymError)
                if ours is None or others is not None:
                    raise
                # One wrong setting fails many episodes at once: all errors equal the first.
                raise _first(ours) from group

        return self._runner.run(with_one_error())

    def collect(
        self,
        new_actor: EpisodeActorFactory,
        starts: Sequence[EpisodeSpec],
        horizon: int,
        *,
        step: int = -1,
        instruction: str = "",
        on_episode: OnEpisode | None = None,
    ) -> list[Trajectory]:
        """Run every start for at most `horizon` turns; trajectories are in the order of `starts`.

        If the local server died, lost episodes run once more on a new server.
        """
        return self.run(
            self.collecting(
                new_actor,
                starts,
                horizon,
                step=step,
                instruction=instruction,
                on_episode=on_episode,
            )
        )

    async def collecting(
        self,
        new_actor: EpisodeActorFactory,
        starts: Sequence[EpisodeSpec],
        horizon: int,
        *,
        step: int = -1,
        instruction: str = "",
        on_episode: OnEpisode | None = None,
    ) -> list[Trajectory]:
        """`collect` as a coroutine; several share the limit of concurrent episodes."""

        async def play(chosen: Sequence[EpisodeSpec]) -> list[Trajectory]:
            rollouts = self._rollouts(new_actor, instruction)
            return await rollouts.collect(chosen, horizon, step=step, on_episode=on_episode)

        client = self._client
        self._busy += 1
        try:
            played = await play(starts)
            await self._replace_dead_server()
            lost = [i for i, t in enumerate(played) if t.outcome == "environment_lost"]
            if lost and self._client is not client:
                again = await play([starts[i] for i in lost])
                for i, trajectory in zip(lost, again, strict=True):
                    played[i] = after_loss(trajectory, played[i])
        finally:
            self._busy -= 1
        return played

    async def open_session(self) -> AsyncSession:
        """A session of its own, which the caller closes."""
        return await self._client.open()

    def _rollouts(self, new_actor: EpisodeActorFactory, instruction: str) -> Rollouts:
        return Rollouts(
            self._client,
            new_actor,
            env_id=self.env_id,
            instruction=instruction,
            concurrency=self._free_slots(),
            concurrency_limits=self.concurrency_limits,
            wrapping=self._wrapping,
        )

    @property
    def concurrency(self) -> int:
        """Maximum of concurrent episodes, for the servers that there are now."""
        sessions = self.card.max_sessions * self._client.server_count
        sessions //= 1 if self.server else self._processes
        return max(1, min(self._wanted_concurrency, sessions))

    def _free_slots(self) -> asyncio.Semaphore:
        """The slots of episodes; fewer than before only when none is taken."""
        most = self.concurrency
        if self._busy <= 1:
            self._slots, self._most = asyncio.Semaphore(most), most
        for _ in range(self._most, most):
            self._slots.release()
        self._most = max(self._most, most)
        return self._slots

    async def _replace_dead_server(self) -> None:
        """Start a new local server if it died; other episodes go on meanwhile."""
        if self.server is None or self.server.process.poll() is None:
            return
        async with self._replacing:
            if await asyncio.to_thread(self.server.replace_ended):
                self._left.append(self._client)
                self._client = self._new_client([self.server.address], NO_TOKEN)

    def _new_client(self, addresses: Sequence[str], token: str | None) -> AsyncEnvClient:
        return AsyncEnvClient(addresses, token=token, timeout_s=_TIMEOUT_S, remedy=_REMEDY)

    def _start_server(self) -> LocalServer:
        return local_server(self.env_id, self._env_kwargs)

    def close(self) -> None:
        """Close the connections, the event loop and the local server."""
        for client in (*self._left, self._client):
            self.run(client.close())
        if not self._shares_runner:
            self._runner.close()
        if self.server is not None:
            self.server.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def live_status(rollout_runner: RolloutRunner, progress: Progress) -> ConcurrencyText | str:
    """The status text of a bar over a runner's episodes; empty where a bar is not redrawn."""
    if not is_redrawn(progress.console):
        return ""
    return ConcurrencyText(rollout_runner.concurrency_limits)


def after_loss(trajectory: Trajectory, lost: Trajectory) -> Trajectory:
    """The repeated episode, with the number of attempts and the error of the lost one."""
    return msgspec.structs.replace(
        trajectory,
        attempts=lost.attempts + trajectory.attempts,
        error=trajectory.error or lost.error,
    )


def _first(group: BaseExceptionGroup[AgentGymError]) -> AgentGymError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
