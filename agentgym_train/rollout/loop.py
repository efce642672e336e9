"""Concurrent episodes, and retries of lost ones, as coroutines; knows nothing about torch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from agentgym_env.client.aio import AsyncEnvClient
from agentgym_env.errors import EpisodeFailure, Outcome
from agentgym_env.printable import one_line
from agentgym_env.trajectory import Trajectory
from agentgym_train.engines.base import EngineLost
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.limits import ConcurrencyLimits, Deadline
from agentgym_train.rollout.run_episode import (
    AgentCrashed,
    DeadlinePassed,
    EpisodeActor,
    EpisodeActorFactory,
    EpisodeResult,
    EpisodeSetup,
    run_episode,
)
from agentgym_train.rollout.wrapping import Wrapping

logger = logging.getLogger(__name__)

OnEpisode = Callable[[Trajectory], None]


class Rollouts:
    """Runs concurrent episodes of one environment; none waits for another.

    An episode whose environment or engine is lost is retried on a new session, as often as the
    limits allow. If it stays lost, its trajectory has that outcome and the error, never a reward.
    A crash of a black-box agent that may follow from the policy's replies is a failure, whatever
    becomes of the other attempts: a policy could otherwise void episodes that it loses.
    """

    def __init__(
        self,
        client: AsyncEnvClient,
        new_actor: EpisodeActorFactory,
        *,
        env_id: str,
        instruction: str = "",
        concurrency: int | asyncio.Semaphore = 256,
        concurrency_limits: ConcurrencyLimits | None = None,
        wrapping: Wrapping | None = None,
    ) -> None:
        """`concurrency` is the maximum number of concurrent episodes, or what several share."""
        self._wrapping = wrapping
        self._client = client
        self._instruction = instruction
        self._new_actor = new_actor
        self._env_id = env_id
        self._slots = (
            asyncio.Semaphore(concurrency) if isinstance(concurrency, int) else concurrency
        )
        self.concurrency_limits = concurrency_limits or ConcurrencyLimits()

    async def collect(
        self,
        starts: Sequence[EpisodeSpec],
        horizon: int,
        *,
        step: int = -1,
        on_episode: OnEpisode | None = None,
    ) -> list[Trajectory]:
        """Run every episode for at most `horizon` turns; trajectories are in their order."""

        async def one(start: EpisodeSpec) -> Trajectory:
            trajectory = await self.play(start, horizon, step)
            if on_episode is not None:
                on_episode(trajectory)
            return trajectory

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(start)) for start in starts]
        return [task.result() for task in tasks]

    async def play(self, start: EpisodeSpec, horizon: int, step: int) -> Trajectory:
        """Run one episode as soon as a slot is free."""
        async with self._slots:
            name = f"task {one_line(start.task)} of {self._env_id}"
            with self.concurrency_limits.episode(name) as clock:
                return await self._play_with_retries(start, horizon, step, clock)

    async def _play_once(
        self, start: EpisodeSpec, horizon: int, step: int, clock: Deadline
    ) -> EpisodeResult:
        actor = self._new_actor()
        setup = EpisodeSetup(
            self._client, start, horizon, self.concurrency_limits, clock, self._wrapping, step
        )
        if isinstance(actor, EpisodeActor):
            return await actor.play(setup)
        return await run_episode(actor, setup)

    async def _play_with_retries(
        self, start: EpisodeSpec, horizon: int, step: int, clock: Deadline
    ) -> Trajectory:
        began = time.monotonic()
        attempts = 0
        result: EpisodeResult | None = None
        error: EpisodeFailure | EngineLost | None = None
        crashes: list[AgentCrashed] = []
        for attempts in range(1, self.concurrency_limits.limits.retries + 2):
            try:
                result = await self._play_once(start, horizon, step, clock)
                break
            except (EpisodeFailure, EngineLost) as failure:
                error = failure
                if isinstance(failure, AgentCrashed):
                    crashes.append(failure)
                logger.warning(
                    "episode of task %s lost (attempt %d): %s",
                    one_line(start.task),
                    attempts,
                    one_line(str(error)),
                )
                if isinstance(failure, DeadlinePassed):
                    break
        for crash in crashes:
            if not crash.was_outage(result):
                result, error = crash.result, crash
                break
        result = result or EpisodeResult(_outcome_of(error), "", [], False, 0.0, [], "")
        return Trajectory(
            env=self._env_id,
            task=start.task,
            seed=start.seed,
            instruction=self._instruction,
            observation=result.observation,
            turns=result.turns,
            outcome=result.outcome,
            policy=result.policy,
            horizon=horizon,
            split=start.split,
            category=start.category,
            success=result.success,
            score=result.score,
            error=None if error is None else f"{type(error).__name__}: {error}",
            attempts=attempts,
            step=step,
            group=start.group,
            sample=start.sample,
            seconds=time.monotonic() - began,
            tokens=result.rows[0] if result.rows else None,
            usage=result.usage,
            further_rows=result.rows[1:],
        )


def _outcome_of(error: EpisodeFailure | EngineLost | None) -> Outcome:
    return error.kind if isinstance(error, EpisodeFailure) else "engine_lost"
