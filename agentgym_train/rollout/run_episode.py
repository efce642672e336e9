"""Runs an episode once within its limits: of time, of concurrent calls, and with wrappers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from agentgym_env.client.aio import AsyncEnvClient, AsyncSession
from agentgym_env.errors import EnvironmentLost, EpisodeFailure, Outcome
from agentgym_env.trajectory import Tokens, Turn
from agentgym_env.wire import ResetReply, StepReply
from agentgym_train.rollout.actors import Actor, ActorOutput, draw_seed
from agentgym_train.rollout.episode import Episode, EpisodeSpec
from agentgym_train.rollout.limits import ConcurrencyLimits, Deadline
from agentgym_train.rollout.wrapping import WrappedSession, Wrapping


@dataclass(slots=True)
class EpisodeResult:
    """What an episode came to."""

    outcome: Outcome
    observation: str
    """The first one."""
    turns: list[Turn]
    success: bool
    score: float
    rows: list[Tokens]
    policy: str
    usage: dict[str, int] = field(default_factory=dict)


class DeadlinePassed(EnvironmentLost):
    """The time limit passed, mostly while waiting for the environment."""

    def __init__(self, clock: Deadline, world_s: float, wrapper: str = "") -> None:
        """`world_s` is how long the environment took, at last in `wrapper`, if that is named."""
        where = f", at last in wrapper {wrapper}; fix it" if wrapper else "; use more servers"
        super().__init__(
            f"the episode exceeded episode_timeout_s {clock.timeout_s:g} and waited "
            f"{world_s:.1f} s for the environment{where} or raise the limit",
            "deadline",
        )


class AgentCrashed(EpisodeFailure):
    """A black-box agent failed after replies of the policy.

    It is a failure of the policy, unless the agent gets the same replies once more and goes on.
    """

    kind = "agent_lost"

    def __init__(self, message: str, result: EpisodeResult) -> None:
        super().__init__(message)
        self.result = result
        """What the episode is if the crash follows from the replies."""

    def was_outage(self, result: EpisodeResult | None) -> bool:
        """Whether another attempt had the same replies, and the agent did not crash."""
        if result is None:
            return False
        said, again = (Counter(turn.response for turn in r.turns) for r in (self.result, result))
        return said <= again


@dataclass(frozen=True, slots=True)
class EpisodeSetup:
    """What an episode is played with, whoever plays it."""

    client: AsyncEnvClient
    spec: EpisodeSpec
    horizon: int
    """Maximum turns."""
    limits: ConcurrencyLimits
    clock: Deadline
    """What `limits.episode(name)` gives."""
    wrapping: Wrapping | None = None
    step: int = 0
    """The optimizer step."""

    @property
    def seed(self) -> int:
        """Seed of the sampling."""
        return draw_seed(self.spec.seed, self.spec.task, self.spec.sample, self.step)

    async def open(self) -> AsyncSession:
        """A new session, with the wrappers."""
        session = await self.client.open()
        return session if self.wrapping is None else self.wrapping.wrap(session)


class EpisodeActor(ABC):
    """Plays a whole episode in its own way, as a black-box agent does that no `Episode` asks."""

    @abstractmethod
    async def play(self, setup: EpisodeSetup) -> EpisodeResult:
        """Play one attempt; raises if the environment, the engine or the agent is lost."""


EpisodeActorFactory = Callable[[], Actor | EpisodeActor]
"""Makes what plays an episode: mostly an actor."""


async def run_episode(actor: Actor, setup: EpisodeSetup) -> EpisodeResult:
    """Open a session, play the episode, and close the session in any case.

    After the time limit the attempt ends as `policy_timeout`, and its turns are trained on, if it
    waited longer for the policy than for the environment. Otherwise it raises `DeadlinePassed`, and
    the episode is lost. Raises if the environment or the engine is lost.
    """
    limits, clock = setup.limits, setup.clock
    limited = cast(Actor, _LimitedActor(actor, limits, clock))
    episode = Episode(limited, setup.spec, setup.horizon, setup.seed)
    session: AsyncSession | None = None
    has_ended = False
    try:
        try:
            async with clock.limit() as limit:
                async with limits.environment.call(clock, "a new session"):
                    session = await setup.open()
                outcome = await episode.play(
                    cast(AsyncSession, _LimitedSession(session, limits, clock))
                )
        except TimeoutError:
            if not limit.expired():
                raise
            outcome = _out_of_time(episode, session, clock)
        has_ended = True
        return _result(episode, actor, outcome, await actor.end())
    finally:
        try:
            if not has_ended:
                await actor.end()
        finally:
            if session is not None:
                await session.close()


def _result(episode: Episode, actor: Actor, outcome: Outcome, rows: list[Tokens]) -> EpisodeResult:
    return EpisodeResult(
        outcome=outcome,
        observation=episode.observation,
        turns=episode.turns,
        success=bool(episode.info.get("success", False)),
        score=float(episode.info.get("score", 0.0)),
        rows=rows,
        policy=actor.name,
        usage=actor.used(),
    )


class _LimitedActor:
    """An actor whose calls to the policy wait for a free slot, and are counted."""

    def __init__(self, actor: Actor, limits: ConcurrencyLimits, clock: Deadline) -> None:
        self._actor, self._limits, self._clock = actor, limits, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)

    async def begin(self, session: _LimitedSession, observation: str, seed: int) -> None:
        await self._actor.begin(session.inner, observation, seed)

    async def act(self) -> ActorOutput | None:
        async with self._limits.policy.call(self._clock):
            output = await self._actor.act()
        if output is not None:
            self._limits.turns += 1
            self._limits.tokens += output.tokens
        return output

    async def reflection(self, outcome: Outcome, observation: str) -> str | None:
        async with self._limits.policy.call(self._clock):
            return await self._actor.reflection(outcome, observation)


class _LimitedSession:
    """A session whose resets and steps wait for a free slot."""

    def __init__(self, session: AsyncSession, limits: ConcurrencyLimits, clock: Deadline) -> None:
        self.inner, self._limits, self._clock = session, limits, clock
        self._steps = 0

    async def reset(
        self, *, seed: int | None = None, task: str | None = None, split: str | None = None
    ) -> ResetReply:
        async with self._limits.environment.call(self._clock, "the reset"):
            return await self.inner.reset(seed=seed, task=task, split=split)

    async def step(self, action: str) -> StepReply:
        self._steps += 1
        async with self._limits.environment.call(self._clock, f"step {self._steps}"):
            return await self.inner.step(action)


def _out_of_time(episode: Episode, session: AsyncSession | None, clock: Deadline) -> Outcome:
    """The outcome after the time limit; raises `DeadlinePassed` if it is the environment's."""
    policy_s, world_s = clock.waited["policy"], clock.waited["environment"]
    if world_s >= policy_s:
        within = session.current_wrapper if isinstance(session, WrappedSession) else ""
        raise DeadlinePassed(clock, world_s, within)
    turn = episode.unanswered()
    if turn is not None:
        # Its tokens were sampled, whatever the environment did.
        episode.turns.append(turn)
    return "policy_timeout"
