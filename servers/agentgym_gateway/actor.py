"""Plays an episode by a black-box agent, which reaches policy and environment by a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec

from agentgym_env.client.aio import AsyncSession
from agentgym_env.errors import AgentGymError, EnvironmentLost, Outcome
from agentgym_env.tools import ToolSpec
from agentgym_env.trajectory import Turn
from agentgym_gateway.episode import FinishedEpisode, GatewayEpisode
from agentgym_gateway.programs import AgentLost, EpisodeAccess, Program, raised
from agentgym_gateway.server import Gateway
from agentgym_train.engines.base import EngineLost
from agentgym_train.rollout.limits import Deadline
from agentgym_train.rollout.run_episode import (
    AgentCrashed,
    DeadlinePassed,
    EpisodeActor,
    EpisodeResult,
    EpisodeSetup,
)

GRACE_S: Final = 10.0
"""Seconds that an agent has to end after its episode is over."""
CRASHED: Final[dict[str, Any]] = {"agent_crashed": True}
"""The info of the last turn before a black-box agent crashed, which may follow from that turn."""
_SILENT: Final = "the agent ended and had sent no request that was accepted"


@dataclass(slots=True)
class GatewayActor(EpisodeActor):
    """Plays episodes by a black-box agent; raises as `run_episode` does."""

    gateway: Gateway
    program: Program
    name: str
    instruction: str
    tools: Sequence[ToolSpec] = ()
    offers: bool = False
    """Whether a program elsewhere takes the episode."""

    async def play(self, setup: EpisodeSetup) -> EpisodeResult:
        """Open a session and an episode of the gateway, run the agent, and close both."""
        spec, limits, clock = setup.spec, setup.limits, setup.clock
        await self.gateway.start()
        session: AsyncSession | None = None
        try:
            try:
                environment = partial(limits.environment.call, clock)
                async with clock.limit() as limit, environment("the reset"):
                    session = await setup.open()
                    reply = await session.reset(seed=spec.seed, task=spec.task)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise DeadlinePassed(clock, clock.waited["environment"]) from error
            episode = self.gateway.open_episode(
                session,
                observation=reply.observation,
                instruction=self.instruction,
                info=reply.info,
                seed=setup.seed,
                horizon=setup.horizon,
                tools=self.tools,
                policy=partial(limits.policy.call, clock),
                environment=environment,
            )
            world_s, crash = 0.0, None
            try:
                late, crash = await self._run(episode, setup)
                world_s = clock.waited["environment"] + episode.step_s
            finally:
                keep = episode.outcome is None or not episode.calls
                finished = await self.gateway.close_episode(episode, keep_unheard=keep)
            if late and finished.outcome is None and world_s > clock.timeout_s / 2:
                raise DeadlinePassed(clock, world_s)
            self._check_played(finished, late, crash, clock)
            limits.turns += len(finished.turns)
            limits.tokens += finished.tokens
            result = self._result(finished, reply.observation, reply.info, late)
            if crash is not None and not self._is_known(finished):
                raise _crashed(crash, result)
            return result
        finally:
            if session is not None:
                await session.close()

    def _is_known(self, finished: FinishedEpisode) -> bool:
        """Whether it is known what an episode is whose agent crashed."""
        return bool(finished.lost or finished.engine_lost) or self.gateway.crashes == "failure"

    def _check_played(
        self, finished: FinishedEpisode, late: bool, crash: AgentLost | None, clock: Deadline
    ) -> None:
        """Raise `AgentLost` if the agent had no part in the episode."""
        failed = finished.lost or finished.engine_lost
        if late and not (finished.asked or finished.turns or failed):
            who = "no program took the episode, or it" if self.offers else "the agent"
            raise AgentLost(f"{who} sent no request in {clock.timeout_s:g} s that was accepted")
        played = finished.asked or (finished.turns and crash is None)
        if not (late or self._is_known(finished) or finished.outcome or played):
            raise crash or AgentLost(_SILENT)

    async def _run(
        self, episode: GatewayEpisode, setup: EpisodeSetup
    ) -> tuple[bool, AgentLost | None]:
        """Run the agent to its end or that of the episode.

        Returns whether time ran out, and how the agent failed before the end of the episode.
        """
        spec = setup.spec
        access = EpisodeAccess(
            self.gateway.base_url, episode.key, spec.task, spec.seed, episode.observation,
            self.instruction, setup.horizon,
        )  # fmt: skip
        if self.offers:
            self.gateway.offer(episode, access.environ)
        running = asyncio.create_task(self.program.run(access))
        over = asyncio.create_task(episode.over.wait())
        try:
            async with setup.clock.limit() as limit:
                await asyncio.wait([running, over], return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    await asyncio.wait([running], timeout=0.0 if self.offers else GRACE_S)
        except TimeoutError:
            if not limit.expired():
                raise
            return True, None
        finally:
            for task in (running, over):
                task.cancel()
            found = await asyncio.gather(running, return_exceptions=True)
            with suppress(asyncio.CancelledError):
                await over
        error = found[0]
        if not isinstance(error, Exception) or episode.over.is_set():
            return False, None
        if isinstance(error, AgentGymError) and not isinstance(error, AgentLost):
            raise error
        return False, error if isinstance(error, AgentLost) else raised(error)

    def _result(
        self, finished: FinishedEpisode, observation: str, first: Mapping[str, Any], late: bool
    ) -> EpisodeResult:
        if finished.lost:
            raise EnvironmentLost(finished.lost)
        if finished.engine_lost and finished.outcome is None:
            raise EngineLost(finished.engine_lost)
        outcome: Outcome = finished.outcome or ("policy_timeout" if late else "failure")
        return EpisodeResult(
            outcome=outcome,
            observation=observation,
            turns=finished.turns,
            success=finished.success,
            score=finished.score,
            rows=finished.rows,
            policy=self.name,
            usage={"requests": finished.calls},
        )


def _crashed(crash: AgentLost, result: EpisodeResult) -> AgentCrashed:
    # Without a turn the reply was still being sampled when the agent crashed.
    *earlier, last = result.turns or [Turn("", "", "")]
    last = msgspec.structs.replace(last, info={**last.info, **CRASHED})
    return AgentCrashed(str(crash), replace(result, turns=[*earlier, last]))
