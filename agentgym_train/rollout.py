"""The turn loop: one coroutine an episode; knows nothing about torch, losses or chat templates."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentgym_env.actions import ActionError
from agentgym_env.async_client import AsyncEnvClient, AsyncSession
from agentgym_env.errors import EpisodeFailure
from agentgym_env.failures import Outcome
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.engines.protocol import EngineLost
from agentgym_train.players import Player, PlayerFactory, draw_seed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """Which episode to play."""

    task: str
    seed: int
    """The world's seed: the same task and seed give the same first observation."""
    sample: int = 0
    """Tells episodes of the same start apart: each samples its own turns."""
    group: int = -1
    split: str = ""
    category: str | None = None


@dataclass(slots=True)
class _Played:
    """What one attempt at an episode brought."""

    outcome: Outcome
    observation: str
    turns: list[Turn]
    success: bool
    score: float
    tokens: Tokens | None
    policy: str


class Rollouts:
    """Plays episodes side by side against one environment; a slow one holds up nobody.

    An episode whose world or engine is lost is tried again on a fresh session, `retries` times;
    if it stays lost it comes back with that outcome and its error, and never as a zero reward.
    """

    def __init__(
        self,
        client: AsyncEnvClient,
        new_player: PlayerFactory,
        *,
        env_id: str,
        instruction: str = "",
        concurrency: int = 256,
        retries: int = 2,
    ) -> None:
        self._client = client
        self._instruction = instruction
        self._new_player = new_player
        self._env_id = env_id
        self._concurrency = concurrency
        self._retries = retries

    async def collect(
        self,
        starts: Sequence[EpisodeStart],
        horizon: int,
        *,
        step: int = -1,
        on_episode: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Play every start for at most `horizon` turns; the trajectories come in its order."""
        slots = asyncio.Semaphore(self._concurrency)

        async def one(start: EpisodeStart) -> Trajectory:
            async with slots:
                trajectory = await self._play_with_retries(start, horizon, step)
            if on_episode is not None:
                on_episode(trajectory)
            return trajectory

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(start)) for start in starts]
        return [task.result() for task in tasks]

    async def _play_with_retries(self, start: EpisodeStart, horizon: int, step: int) -> Trajectory:
        began = time.monotonic()
        attempt = 0
        error: EpisodeFailure | EngineLost | None = None
        for attempt in range(1, self._retries + 2):
            try:
                played = await self._play(start, horizon, step)
                break
            except (EpisodeFailure, EngineLost) as failure:
                error = failure
                logger.warning(
                    "episode of task %s lost (attempt %d): %s", start.task, attempt, error
                )
        else:
            outcome: Outcome = "engine_lost"
            if isinstance(error, EpisodeFailure):
                outcome = error.kind
            played = _Played(outcome, "", [], False, 0.0, None, "")
        return Trajectory(
            env=self._env_id,
            task=start.task,
            seed=start.seed,
            instruction=self._instruction,
            observation=played.observation,
            turns=played.turns,
            outcome=played.outcome,
            policy=played.policy,
            horizon=horizon,
            split=start.split,
            category=start.category,
            success=played.success,
            score=played.score,
            error=None if error is None else f"{type(error).__name__}: {error}",
            attempts=attempt,
            step=step,
            group=start.group,
            seconds=time.monotonic() - began,
            tokens=played.tokens,
        )

    async def _play(self, start: EpisodeStart, horizon: int, step: int) -> _Played:
        """One attempt on a session of its own; a loss of world or engine is raised."""
        player = self._new_player()
        session = await self._client.open()
        ended = False
        try:
            first = await session.reset(seed=start.seed, task=start.task)
            draws = draw_seed(start.seed, start.task, start.sample, step)
            await player.begin(session, first.observation, draws)
            turns: list[Turn] = []
            outcome = await _take_turns(player, session, horizon, turns)
            info = next((t.info for t in reversed(turns) if t.info), first.info)
            ended = True
            return _Played(
                outcome=outcome,
                observation=first.observation,
                turns=turns,
                success=bool(info.get("success", False)),
                score=float(info.get("score", 0.0)),
                tokens=await player.end(),
                policy=player.name,
            )
        finally:
            if not ended:
                await player.end()
            await session.close()


async def _take_turns(
    player: Player, session: AsyncSession, horizon: int, turns: list[Turn]
) -> Outcome:
    """Play until the world ends, the horizon is reached, or the player has no tokens left."""
    for turn in range(horizon):
        move = await player.act()
        if move is None:
            return "token_budget"
        if isinstance(move.action, ActionError):
            # The text holds no action: the policy is told so, and the turn is spent.
            turns.append(Turn(move.response, "", move.action.message))
        else:
            reply = await session.step(move.action)
            turns.append(
                Turn(move.response, move.action, reply.observation, reply.reward, reply.info)
            )
            if reply.terminated:
                return "success" if reply.info.get("success") else "failure"
            if reply.truncated:
                return "horizon"
        if turn + 1 < horizon:
            await player.observe(turns[-1].observation)
    return "horizon"
