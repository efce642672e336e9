"""One whole episode with retries, as one coroutine; knows nothing about torch or losses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from agentgym_env.actions import ActionError
from agentgym_env.client.aio import AsyncEnvClient, AsyncSession
from agentgym_env.errors import BadRequest, EnvironmentLost, EpisodeFailure, Outcome
from agentgym_env.printable import one_line
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.config.values import RolloutLimits
from agentgym_train.engines.base import EngineLost
from agentgym_train.rollout.actors import Actor, ActorFactory, ActorOutput, draw_seed
from agentgym_train.rollout.limits import ConcurrencyLimits, Deadline
from agentgym_train.rollout.wrapping import Wrapping

_MAX_NON_ACTION_TURNS = 8

"""Turns in a row without an environment step, after which an agent is taken for broken."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
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
class EpisodeResult:
    """What one attempt at an episode brought."""

    outcome: Outcome
    observation: str
    turns: list[Turn]
    success: bool
    score: float
    rows: list[Tokens]
    policy: str
    usage: dict[str, int] = field(default_factory=dict)


class DeadlinePassed(EnvironmentLost):
    """The episode's time is over, and most of it went by in waiting for the environment."""


class EpisodeRun:
    """Plays one episode once; a loss of world or engine is raised.

    When the episode's time is over the attempt ends as `policy_timeout`, and teaches as far as it
    came, if it waited longer for the policy than for the environment. Otherwise nothing can be
    blamed on the policy: it raises `DeadlinePassed`, and the episode is lost.
    """

    def __init__(
        self,
        actor: Actor,
        start: EpisodeSpec,
        horizon: int,
        concurrency_limits: ConcurrencyLimits,
        clock: Deadline,
        wrapping: Wrapping | None = None,
    ) -> None:
        self._actor = actor
        self._wrapping = wrapping
        self._start = start
        self._horizon = horizon
        self._concurrency_limits = concurrency_limits
        self._clock = clock
        self._first = ""
        self._info: dict[str, object] = {}
        self._turns: list[Turn] = []
        self._unanswered: ActorOutput | None = None

    async def play(self, client: AsyncEnvClient, step: int) -> EpisodeResult:
        """Open a session, play, and close it whatever the end."""
        session: AsyncSession | None = None
        ended = False
        try:
            try:
                async with self._clock.limit() as limit:
                    async with self._concurrency_limits.environment.call(self._clock):
                        session = await _opened(client)
                        if self._wrapping is not None:
                            session = await self._wrapping.wrap(session)
                    outcome = await self._trials(session, step)
            except TimeoutError:
                if not limit.expired():
                    raise
                outcome = self._out_of_time()
            ended = True
            return await self._played(outcome)
        finally:
            if not ended:
                await self._actor.end()
            if session is not None:
                await session.close()

    async def _trials(self, session: AsyncSession, step: int) -> Outcome:
        """The episode, and again from its start as long as the player asks for it."""
        first = await self._reset(session)
        draws = draw_seed(self._start.seed, self._start.task, self._start.sample, step)
        await self._actor.begin(session, first, draws)
        self._first = first
        outcome = await self._take_turns(session)
        while True:
            async with self._concurrency_limits.policy.call(self._clock):
                last = self._turns[-1].observation if self._turns else first
                lesson = await self._actor.lesson(outcome, last)
            if lesson is None:
                return outcome
            # What counts is how the last trial ends: to fail first must not pay.
            self._turns = [_unpaid(turn) for turn in self._turns]
            again = await self._reset(session)
            self._turns.append(Turn(lesson, "", again))
            await self._actor.begin_again(lesson, again)
            outcome = await self._take_turns(session)

    async def _reset(self, session: AsyncSession) -> str:
        async with self._concurrency_limits.environment.call(self._clock):
            reply = await session.reset(seed=self._start.seed, task=self._start.task)
        self._info = reply.info
        return reply.observation

    async def _take_turns(self, session: AsyncSession) -> Outcome:
        """Play until the world ends, the horizon is reached, or the player has no tokens left."""
        steps = non_action_turns = 0
        while steps < self._horizon:
            async with self._concurrency_limits.policy.call(self._clock):
                move = await self._actor.act()
            if move is None:
                return "token_budget"
            self._concurrency_limits.turns += 1
            self._concurrency_limits.tokens += move.tokens
            if move.action is None:
                non_action_turns += 1
                if non_action_turns > _MAX_NON_ACTION_TURNS:
                    raise BadRequest(
                        f"the agent of {self._actor.name} took {non_action_turns} turns without an "
                        "environment step; let it act in between"
                    )
                self._turns.append(Turn(move.response, "", move.answer))
                continue
            steps, non_action_turns = steps + 1, 0
            ending = await self._step(session, move, move.action)
            if ending is not None:
                return ending
            if steps < self._horizon:
                await self._actor.observe(self._turns[-1].observation)
        return "horizon"

    async def _step(
        self, session: AsyncSession, move: ActorOutput, action: str | ActionError
    ) -> Outcome | None:
        """Take the move's turn; the outcome if it was the last."""
        if isinstance(action, ActionError):
            # The text holds no action: the policy is told so, and the turn is spent.
            told = action.message
            self._turns.append(Turn(move.response, "", told, info={"invalid_action": True}))
            return None
        self._unanswered = move
        async with self._concurrency_limits.environment.call(self._clock):
            reply = await session.step(action)
        self._unanswered = None
        self._turns.append(Turn(move.response, action, reply.observation, reply.reward, reply.info))
        if reply.terminated:
            return "success" if reply.info.get("success") else "failure"
        return "horizon" if reply.truncated else None

    def _out_of_time(self) -> Outcome:
        policy_s, world_s = self._clock.waited["policy"], self._clock.waited["environment"]
        if world_s >= policy_s:
            raise DeadlinePassed(
                f"the episode took longer than episode_timeout_s {self._clock.timeout_s:g}, and "
                f"{world_s:.1f} s of it for the environment; raise the limit or use more servers",
                "deadline",
            )
        if isinstance(self._unanswered, ActorOutput) and isinstance(self._unanswered.action, str):
            # Its tokens were sampled, and the world's answer is not known.
            self._turns.append(Turn(self._unanswered.response, self._unanswered.action, ""))
        return "policy_timeout"

    async def _played(self, outcome: Outcome) -> EpisodeResult:
        infos = (turn.info for turn in reversed(self._turns))
        info = next((info for info in infos if "success" in info), self._info)
        return EpisodeResult(
            outcome=outcome,
            observation=self._first,
            turns=self._turns,
            success=bool(info.get("success", False)),
            score=float(info.get("score", 0.0)),  # type: ignore[arg-type]
            rows=await self._actor.end(),
            policy=self._actor.name,
            usage=self._actor.used(),
        )


async def _opened(client: AsyncEnvClient) -> AsyncSession:
    """A new session; one that was opened for an episode that is given up meanwhile is closed."""
    opening = asyncio.ensure_future(client.open())
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        session = await opening
        await session.close()
        raise


def _unpaid(turn: Turn) -> Turn:
    if not turn.reward:
        return turn
    info = {**turn.info, "reward_of_earlier_trial": turn.reward}
    return msgspec.structs.replace(turn, reward=0.0, info=info)


__all__ = ["EpisodeSpec", "RolloutLimits", "Rollouts"]

logger = logging.getLogger(__name__)


class Rollouts:
    """Plays episodes side by side against one environment; a slow one holds up nobody.

    An episode whose world or engine is lost is tried again on a fresh session, as often as the
    limits say; if it stays lost it comes back with that outcome and its error, and never as a zero
    reward.
    """

    def __init__(
        self,
        client: AsyncEnvClient,
        new_actor: ActorFactory,
        *,
        env_id: str,
        instruction: str = "",
        concurrency: int = 256,
        concurrency_limits: ConcurrencyLimits | None = None,
        wrapping: Wrapping | None = None,
    ) -> None:
        """`concurrency` is the maximum of episodes under way; `concurrency_limits` the rest."""
        self._wrapping = wrapping
        self._client = client
        self._instruction = instruction
        self._new_actor = new_actor
        self._env_id = env_id
        self._slots = asyncio.Semaphore(concurrency)
        self.concurrency_limits = concurrency_limits or ConcurrencyLimits()

    async def collect(
        self,
        starts: Sequence[EpisodeSpec],
        horizon: int,
        *,
        step: int = -1,
        on_episode: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Play every start for at most `horizon` turns; the trajectories come in its order."""

        async def one(start: EpisodeSpec) -> Trajectory:
            trajectory = await self.play(start, horizon, step)
            if on_episode is not None:
                on_episode(trajectory)
            return trajectory

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(start)) for start in starts]
        return [task.result() for task in tasks]

    async def play(self, start: EpisodeSpec, horizon: int, step: int) -> Trajectory:
        """Play one episode as soon as there is a place."""
        async with self._slots:
            with self.concurrency_limits.episode() as clock:
                return await self._play_with_retries(start, horizon, step, clock)

    async def _play_with_retries(
        self, start: EpisodeSpec, horizon: int, step: int, clock: Deadline
    ) -> Trajectory:
        began = time.monotonic()
        attempt = 0
        played: EpisodeResult | None = None
        error: EpisodeFailure | EngineLost | None = None
        for attempt in range(1, self.concurrency_limits.limits.retries + 2):
            trial = EpisodeRun(
                self._new_actor(), start, horizon, self.concurrency_limits, clock, self._wrapping
            )
            try:
                played = await trial.play(self._client, step)
                break
            except (EpisodeFailure, EngineLost) as failure:
                error = failure
                logger.warning(
                    "episode of task %s lost (attempt %d): %s",
                    one_line(start.task),
                    attempt,
                    one_line(str(error)),
                )
                if isinstance(failure, DeadlinePassed):
                    break
        played = played or EpisodeResult(_outcome_of(error), "", [], False, 0.0, [], "")
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
            sample=start.sample,
            seconds=time.monotonic() - began,
            tokens=played.rows[0] if played.rows else None,
            usage=played.usage,
            further_rows=played.rows[1:],
        )


def _outcome_of(error: EpisodeFailure | EngineLost | None) -> Outcome:
    return error.kind if isinstance(error, EpisodeFailure) else "engine_lost"
