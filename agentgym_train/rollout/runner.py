"""RolloutRunner: runs rollouts from synchronous code; owns event loop, client and local server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from agentgym_env.client.aio import AsyncEnvClient, AsyncSession
from agentgym_env.errors import AgentGymError, ConfigError
from agentgym_env.launch import LocalServer, local_server
from agentgym_env.registry import full_id
from agentgym_env.server_token import NO_TOKEN, token_of_file
from agentgym_env.text_env import TaskSet
from agentgym_env.trajectory import Trajectory
from agentgym_env.wire import EnvCard
from agentgym_env.wrappers import WrapperSpec
from agentgym_train.config.methods import AgentEvolConfig, RLConfig
from agentgym_train.config.worlds import RLWorld, World
from agentgym_train.event_loop import LoopRunner
from agentgym_train.rollout.loop import (
    ConcurrencyLimits,
    EpisodeActorFactory,
    EpisodeSpec,
    RolloutLimits,
    Rollouts,
)
from agentgym_train.rollout.wrapping import Wrapping

_REDRAWN_EVERY_S = 0.25


class NotebookProgress(Progress):
    """A progress bar in the output of a notebook's cell. It is drawn in place, without widgets."""

    _display: Any = None
    _drawn = 0.0

    def start(self) -> None:
        """Show it, unless the console is quiet."""
        if not self.console.quiet:
            from IPython.display import display  # there is a notebook, so it is installed

            self._display = display(self, display_id=True)

    def stop(self) -> None:
        """Draw the last state."""
        self.refresh()

    def refresh(self) -> None:
        """Draw it again."""
        if self._display is not None:
            self._drawn = time.monotonic()
            self._display.update(self)

    def update(self, *args: Any, **values: Any) -> None:
        """Change a task; drawn at once if that was long ago."""
        super().update(*args, **values)
        self._refresh_at_times()

    def advance(self, *args: Any, **values: Any) -> None:
        """Count on; drawn at once if that was long ago."""
        super().advance(*args, **values)
        self._refresh_at_times()

    def _refresh_at_times(self) -> None:
        if time.monotonic() - self._drawn > _REDRAWN_EVERY_S:
            self.refresh()


def progress_bar(console: Console) -> Progress:
    """A progress bar whose tasks have a `status` field, shown at the end of the line."""
    kind = NotebookProgress if console.is_jupyter else Progress
    return kind(
        TextColumn("[bold]{task.description:<12}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[status]}"),
        console=console,
    )


Group = Sequence[EpisodeSpec]

OnEpisode = Callable[[Trajectory], None]


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A group whose episodes are running."""

    version: int
    size: int
    task: asyncio.Task[list[Trajectory]]


class OversamplingPool:
    """Starts more groups than needed and returns the first complete ones.

    Groups are never split, so their baselines stay correct. Groups of short episodes complete
    first. With `carries=False` the other groups are dropped, which **biases training towards tasks
    with short episodes**: long episodes are trained on less, or never. With `carries=True` they
    pause while the weights change and resume in the next step; each token keeps the version of the
    weights that sampled it. Only groups whose first token is more than `max_staleness` updates old
    are dropped. Which groups complete first depends on timing, so two runs with one seed differ.
    Dropped episodes are counted and never become a reward of 0.
    """

    def __init__(
        self, concurrency_limits: ConcurrencyLimits, *, carries: bool, max_staleness: int
    ) -> None:
        self._concurrency_limits = concurrency_limits
        self._carries = carries
        self._max_staleness = max_staleness
        self._under_way: list[_UnderWay] = []
        self.dropped = 0
        """Episodes that were started and dropped in the last step."""

    async def collect(
        self,
        rollouts: Rollouts,
        groups: Sequence[Group],
        horizon: int,
        *,
        wanted: int,
        step: int,
        version: int,
        on_episode: OnEpisode | None = None,
    ) -> list[Trajectory]:
        """Run groups for `step` and return the episodes of the first `wanted` complete ones.

        As many groups run as are given; groups carried over from earlier steps replace the last
        ones. `version` is the version of the current weights.
        """
        self.dropped = 0
        await self._drop([g for g in self._under_way if step - g.version > self._max_staleness])
        for group in groups[: max(0, len(groups) - len(self._under_way))]:
            playing = _play(rollouts, group, horizon, step, on_episode)
            self._under_way.append(_UnderWay(version, len(group), asyncio.create_task(playing)))
        self._concurrency_limits.resume()
        try:
            complete = await self._first(wanted)
            played = [trajectory for group in complete for trajectory in group.task.result()]
        except BaseException:
            await self.close()
            raise
        if self._carries:
            await self._concurrency_limits.pause()
        else:
            await self._drop(self._under_way)
        return played

    async def close(self) -> None:
        """Cancel the running groups."""
        await self._drop(self._under_way)

    async def _first(self, wanted: int) -> list[_UnderWay]:
        """The first complete groups, in the order in which they started."""
        while True:
            done = [group for group in self._under_way if group.task.done()]
            if len(done) >= wanted:
                chosen = done[:wanted]
                self._under_way = [group for group in self._under_way if group not in chosen]
                return chosen
            for group in done:
                group.task.result()  # raises the error of a failed group
            waiting = [group.task for group in self._under_way if not group.task.done()]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    async def _drop(self, groups: Sequence[_UnderWay]) -> None:
        for group in groups:
            group.task.cancel()
        await asyncio.gather(*(group.task for group in groups), return_exceptions=True)
        self.dropped += sum(group.size for group in groups)
        self._under_way = [group for group in self._under_way if group not in groups]


async def _play(
    rollouts: Rollouts, group: Group, horizon: int, step: int, on_episode: OnEpisode | None
) -> list[Trajectory]:
    return await rollouts.collect(group, horizon, step=step, on_episode=on_episode)


logger = logging.getLogger(__name__)

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
        self._pool: OversamplingPool | None = None
        self._wrapping: Wrapping | None = None
        self._running: asyncio.Task[Any] | None = None
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
                self._wrapping = Wrapping(wrappers, self.card, self.tasks, self._concurrency())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to completion on the event loop; call it from one thread at a time."""

        async def tracked() -> _T:
            self._running = asyncio.current_task()
            try:
                return await work
            except ExceptionGroup as group:
                ours, others = group.split(AgentGymError)
                if ours is None or others is not None:
                    raise
                # One wrong setting fails many episodes at once: all errors equal the first.
                raise _first(ours) from group
            finally:
                self._running = None

        return self._runner.run(tracked())

    def stop(self) -> None:
        """Cancel the coroutine that another thread runs, if any."""
        running = self._running
        if running is not None:
            running.get_loop().call_soon_threadsafe(running.cancel)

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

        If the local server died, lost episodes run once more on a new server. Groups that were
        carried over from a training step are cancelled.
        """
        self._end_pool()
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
        """`collect` as a coroutine, so that several environments can be played at once."""

        async def play(chosen: Sequence[EpisodeSpec]) -> list[Trajectory]:
            rollouts = self._rollouts(new_actor, instruction)
            return await rollouts.collect(chosen, horizon, step=step, on_episode=on_episode)

        played = await play(starts)
        if await self._replace_dead_server():
            lost = [i for i, t in enumerate(played) if t.outcome == "environment_lost"]
            again = await play([starts[i] for i in lost])
            for i, trajectory in zip(lost, again, strict=True):
                played[i] = after_loss(trajectory, played[i])
        return played

    def collect_groups(
        self,
        pool: OversamplingPool,
        new_actor: EpisodeActorFactory,
        groups: Sequence[Sequence[EpisodeSpec]],
        horizon: int,
        *,
        wanted: int,
        step: int,
        version: int,
        instruction: str = "",
        on_episode: OnEpisode | None = None,
    ) -> list[Trajectory]:
        """Run groups and return the first `wanted` complete ones; see `OversamplingPool`.

        If the local server died, the next step uses a new one; lost episodes are not repeated.
        """
        self._pool = pool
        played = self.run(
            pool.collect(
                self._rollouts(new_actor, instruction),
                groups,
                horizon,
                wanted=wanted,
                step=step,
                version=version,
                on_episode=on_episode,
            )
        )
        self.run(self._replace_dead_server())
        return played

    async def open_session(self) -> AsyncSession:
        """A session of its own, which the caller closes."""
        return await self._client.open()

    def _end_pool(self) -> None:
        if self._pool is not None:
            self.run(self._pool.close())
            self.concurrency_limits.resume()
            self._pool = None

    def _rollouts(self, new_actor: EpisodeActorFactory, instruction: str) -> Rollouts:
        return Rollouts(
            self._client,
            new_actor,
            env_id=self.env_id,
            instruction=instruction,
            concurrency=self._concurrency(),
            concurrency_limits=self.concurrency_limits,
            wrapping=self._wrapping,
        )

    def _concurrency(self) -> int:
        """Episodes at the same time, for the servers that there are now."""
        sessions = self.card.max_sessions * self._client.server_count
        sessions //= 1 if self.server else self._processes
        return max(1, min(self._wanted_concurrency, sessions))

    async def _replace_dead_server(self) -> bool:
        """Start a new local server if it died."""
        if self.server is None or not self.server.replace_ended():
            return False
        await self._client.close()
        self._client = self._new_client([self.server.address], NO_TOKEN)
        return True

    def _new_client(self, addresses: Sequence[str], token: str | None) -> AsyncEnvClient:
        return AsyncEnvClient(addresses, token=token, timeout_s=_TIMEOUT_S, remedy=_REMEDY)

    def _start_server(self) -> LocalServer:
        return local_server(self.env_id, self._env_kwargs)

    def close(self) -> None:
        """Close the connections, the event loop and the local server."""
        self._end_pool()
        self.run(self._client.close())
        if not self._shares_runner:
            self._runner.close()
        if self.server is not None:
            self.server.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def _first(group: BaseExceptionGroup[AgentGymError]) -> AgentGymError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def after_loss(trajectory: Trajectory, lost: Trajectory) -> Trajectory:
    """The repeated episode, with the number of attempts and the error of the lost one."""
    return msgspec.structs.replace(
        trajectory,
        attempts=lost.attempts + trajectory.attempts,
        error=trajectory.error or lost.error,
    )


class ConcurrencyText:
    """Current throughput and queue lengths, computed whenever the line is drawn."""

    def __init__(self, concurrency_limits: ConcurrencyLimits) -> None:
        self._concurrency_limits = concurrency_limits
        self._turns, self._tokens = concurrency_limits.turns, concurrency_limits.tokens
        self._began = time.monotonic()

    def __str__(self) -> str:
        turns = self._concurrency_limits.turns - self._turns
        tokens = self._concurrency_limits.tokens - self._tokens
        seconds = max(time.monotonic() - self._began, 1e-3)
        policy, world = (
            self._concurrency_limits.policy.waiting,
            self._concurrency_limits.environment.waiting,
        )
        return (
            f"{turns} turns  {tokens / seconds:.0f} tok/s  waiting: policy {policy}, "
            f"environments {world}"
        )


def live_status(rollout_runner: RolloutRunner, progress: Progress) -> ConcurrencyText | str:
    """The status text of a bar over a runner's episodes; empty where a bar is not redrawn."""
    if not is_redrawn(progress.console):
        return ""
    return ConcurrencyText(rollout_runner.concurrency_limits)


def is_redrawn(console: Console) -> bool:
    """Whether a bar moves there; elsewhere, as in a file, it is written once, at its end."""
    return console.is_terminal or console.is_jupyter


class RolloutBar:
    """Progress bar of a step's episodes, visible during rollouts and where it is redrawn."""

    def __init__(self, progress: Progress, concurrency_limits: ConcurrencyLimits) -> None:
        self._progress = progress
        self._concurrency_limits = concurrency_limits
        self._line = progress.add_task("episodes", total=1, visible=False, status="")

    def begin(self, episodes: int) -> None:
        """Show the bar for this many episodes."""
        self._progress.reset(
            self._line,
            total=episodes,
            visible=is_redrawn(self._progress.console),
            status=ConcurrencyText(self._concurrency_limits),
        )

    def advance(self, _: object = None) -> None:
        """Count one finished episode."""
        self._progress.advance(self._line)

    def end(self) -> None:
        """Hide the bar."""
        self._progress.update(self._line, visible=False)


class Worlds(AbstractContextManager["Worlds"]):
    """A `RolloutRunner` per environment. They share an event loop, so one engine serves all."""

    def __init__(self, config: AgentEvolConfig | RLConfig, processes: int = 1) -> None:
        """Raises an error if an environment, its server or a split is not available.

        In RL all environments are played at once, and share `concurrency`.
        """
        self._open = ExitStack()
        runner = self._open.enter_context(LoopRunner())
        self.concurrency_limits = ConcurrencyLimits(config.rollout_limits)
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
