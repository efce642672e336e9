"""One attempt at an episode, from `reset` to its outcome; knows nothing about retries or torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from agentgym_env.actions import ActionError
from agentgym_env.client.aio import AsyncEnvClient, AsyncSession
from agentgym_env.errors import ConfigError, EnvironmentLost, EpisodeFailure, Outcome, outcome_of
from agentgym_env.trajectory import Tokens, Turn
from agentgym_train.rollout.actors import Actor, ActorOutput, draw_seed
from agentgym_train.rollout.limits import ConcurrencyLimits, Deadline
from agentgym_train.rollout.tool_calls import ToolCalls
from agentgym_train.rollout.wrapping import WrappedSession, Wrapping

INVALID: Final[dict[str, Any]] = {"invalid_action": True}
"""The info of a turn whose response has no action; the environment never sees it."""
CRASHED: Final[dict[str, Any]] = {"agent_crashed": True}
"""The info of the last turn before a black-box agent crashed, which may follow from that turn."""
WITHOUT_LOSS: Final[dict[str, Any]] = {"loss": False}
"""The info of a turn that is only context for those who learn from the episode."""
_MAX_NON_ACTION_TURNS = 8
"""Consecutive non-action turns after which an agent is considered broken."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Describes an episode to run."""

    task: str
    seed: int
    """Seed of the environment: the same task and seed give the same first observation."""
    sample: int = 0
    """Number of the episode among those of the same task and seed; each samples its own turns."""
    group: int = -1
    split: str = ""
    category: str | None = None
    env: int = 0
    """Number of the environment, among those of the run."""


@dataclass(slots=True)
class EpisodeResult:
    """The result of one attempt at an episode."""

    outcome: Outcome
    observation: str
    turns: list[Turn]
    success: bool
    score: float
    rows: list[Tokens]
    policy: str
    usage: dict[str, int] = field(default_factory=dict)


class DeadlinePassed(EnvironmentLost):
    """The time limit passed, mostly while waiting for the environment."""


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


class EpisodeRun:
    """Runs one attempt at an episode; raises if the environment or the engine is lost.

    After the time limit the attempt ends as `policy_timeout`, and its turns are trained on, if it
    waited longer for the policy than for the environment. Otherwise it raises `DeadlinePassed`, and
    the episode is lost.
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
        self._left = horizon
        """Turns of the horizon that are left, over all trials."""
        self._concurrency_limits = concurrency_limits
        self._clock = clock
        self._first = ""
        self._info: dict[str, object] = {}
        self._turns: list[Turn] = []
        self._unanswered: ActorOutput | None = None

    async def play(self, client: AsyncEnvClient, step: int) -> EpisodeResult:
        """Open a session, run the episode, and close the session in any case."""
        session: AsyncSession | None = None
        ended = False
        try:
            try:
                async with self._clock.limit() as limit:
                    async with self._world("a new session"):
                        session = await client.open()
                        if self._wrapping is not None:
                            session = self._wrapping.wrap(session)
                    outcome = await self._trials(session, step)
            except TimeoutError:
                if not limit.expired():
                    raise
                outcome = self._out_of_time(session)
            ended = True
            return await self._result(outcome)
        finally:
            try:
                if not ended:
                    await self._actor.end()
            finally:
                if session is not None:
                    await session.close()

    async def _trials(self, session: AsyncSession, step: int) -> Outcome:
        """Run the episode, and again from its start while the actor asks for another trial."""
        first = await self._reset(session)
        draws = draw_seed(self._start.seed, self._start.task, self._start.sample, step)
        await self._actor.begin(session, first, draws)
        self._first = first
        # All trials share the horizon: a trial leaves the others their part of it.
        trials = self._actor.trials
        outcome = await self._take_turns(session, -(-self._left // trials))
        while self._left:
            async with self._concurrency_limits.policy.call(self._clock):
                last = self._turns[-1].observation if self._turns else first
                reflection = await self._actor.reflection(outcome, last)
            if reflection is None:
                return outcome
            # Only the last trial counts: failing first must not be rewarded.
            self._turns = [_unpaid(turn) for turn in self._turns]
            again = await self._reset(session)
            self._turns.append(Turn(reflection, "", again, cut=self._actor.was_cut))
            await self._actor.begin_again(reflection, again)
            trials = max(1, trials - 1)
            outcome = await self._take_turns(session, -(-self._left // trials))
        return outcome

    def _world(self, what: str) -> AbstractAsyncContextManager[None]:
        return self._concurrency_limits.environment.call(self._clock, what)

    async def _reset(self, session: AsyncSession) -> str:
        async with self._world("the reset"):
            reply = await session.reset(seed=self._start.seed, task=self._start.task)
        self._info = reply.info
        return reply.observation

    async def _take_turns(self, session: AsyncSession, most: int) -> Outcome:
        """Run until the environment ends, `most` turns are taken, or no tokens are left."""
        steps = non_action_turns = 0
        while steps < most:
            async with self._concurrency_limits.policy.call(self._clock):
                output = await self._actor.act()
            if output is None:
                return "token_budget"
            self._concurrency_limits.turns += 1
            self._concurrency_limits.tokens += output.tokens
            if output.action is None:
                non_action_turns += 1
                if non_action_turns > _MAX_NON_ACTION_TURNS:
                    raise ConfigError(
                        f"the agent of {self._actor.name} took {non_action_turns} turns in a row "
                        "without an environment step; let it act in between"
                    )
                self._turns.append(Turn(output.response, "", output.answer, cut=output.cut))
                continue
            non_action_turns = 0
            if isinstance(output.action, ToolCalls):
                taken, ending = await self._call(session, output, output.action, most - steps)
            else:
                taken, ending = 1, await self._step(session, output, output.action)
            steps += taken
            self._left -= taken
            if ending is not None:
                return ending
            if steps < most:
                last = self._turns[-1]
                results = [call["observation"] for call in last.info.get("calls", ())]
                await self._actor.observe(last.observation, results)
        return "horizon"

    async def _call(
        self, session: AsyncSession, output: ActorOutput, calls: ToolCalls, most: int
    ) -> tuple[int, Outcome | None]:
        """Carry out calls one after the other, at most `most` that reach the environment.

        Returns their number, at least 1, and the outcome if the episode is over. The turn has the
        sum of the rewards; with several calls its info has each of them.
        """
        made: list[dict[str, Any]] = []
        info: dict[str, Any] = {**INVALID}
        taken, rejected = 0, False
        ending: Outcome | None = None
        self._unanswered = output
        for call in calls.calls:
            if call.action is None:
                made.append({"action": "", "observation": call.problem, "reward": 0.0})
                rejected = True
                continue
            if taken == most or ending is not None:
                break
            async with self._world(f"turn {len(self._turns) + 1}"):
                reply = await session.step(call.action)
            taken, info = taken + 1, reply.info
            rejected |= bool(reply.info.get("invalid_action"))
            row = {"action": call.action, "observation": reply.observation, "reward": reply.reward}
            made.append(row)
            ending = outcome_of(reply.terminated, reply.truncated, reply.info)
        self._unanswered = None
        if len(calls.calls) > 1:
            info = {**info, "invalid_action": rejected, "calls": made}
        if not output.trained:
            info = {**info, **WITHOUT_LOSS}
        observation = "\n\n".join(row["observation"] for row in made)
        reward = sum(row["reward"] for row in made)
        turn = Turn(output.response, str(calls), observation, reward, info, output.cut)
        self._turns.append(turn)
        return max(1, taken), ending

    async def _step(
        self, session: AsyncSession, output: ActorOutput, action: str | ActionError
    ) -> Outcome | None:
        """Send the action; returns the outcome if the episode is over."""
        context = {} if output.trained else WITHOUT_LOSS
        if isinstance(action, ActionError):
            # The response has no action: the observation says so, and the turn counts.
            info = {**INVALID, **context}
            self._turns.append(Turn(output.response, "", action.message, info=info, cut=output.cut))
            return None
        self._unanswered = output
        async with self._world(f"turn {len(self._turns) + 1}"):
            reply = await session.step(action)
        self._unanswered = None
        self._turns.append(
            Turn(
                output.response,
                action,
                reply.observation,
                reply.reward,
                {**reply.info, **context} if context else reply.info,
                output.cut,
            )
        )
        return outcome_of(reply.terminated, reply.truncated, reply.info)

    def _out_of_time(self, session: AsyncSession | None) -> Outcome:
        policy_s, world_s = self._clock.waited["policy"], self._clock.waited["environment"]
        if world_s >= policy_s:
            within = session.current_wrapper if isinstance(session, WrappedSession) else ""
            raise DeadlinePassed(
                f"the episode exceeded episode_timeout_s {self._clock.timeout_s:g} and waited "
                f"{world_s:.1f} s for the environment"
                + (f", at last in wrapper {within}; fix it" if within else "; use more servers")
                + " or raise the limit",
                "deadline",
            )
        if isinstance(self._unanswered, ActorOutput) and isinstance(self._unanswered.action, str):
            # Its tokens were sampled; the observation is unknown.
            info = {} if self._unanswered.trained else WITHOUT_LOSS
            turn = Turn(
                self._unanswered.response,
                self._unanswered.action,
                "",
                info=info,
                cut=self._unanswered.cut,
            )
            self._turns.append(turn)
        return "policy_timeout"

    async def _result(self, outcome: Outcome) -> EpisodeResult:
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


class EpisodeActor(ABC):
    """Plays a whole episode in its own way, in place of an actor that the turn loop asks."""

    @abstractmethod
    async def play(
        self,
        client: AsyncEnvClient,
        start: EpisodeSpec,
        horizon: int,
        concurrency_limits: ConcurrencyLimits,
        clock: Deadline,
        wrapping: Wrapping | None,
        step: int,
    ) -> EpisodeResult:
        """Play one attempt; raises if the environment, the engine or the agent is lost."""


EpisodeActorFactory = Callable[[], Actor | EpisodeActor]
"""Makes what plays an episode: mostly an actor."""


def _unpaid(turn: Turn) -> Turn:
    if not turn.reward:
        return turn
    info = {**turn.info, "reward_of_earlier_trial": turn.reward}
    return msgspec.structs.replace(turn, reward=0.0, info=info)
