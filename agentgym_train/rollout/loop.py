"""One whole episode with retries, as one coroutine; knows nothing about torch or losses."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from agentgym_env.actions import ActionError
from agentgym_env.client.aio import AsyncEnvClient, AsyncSession
from agentgym_env.errors import ConfigError, EnvironmentLost, EpisodeFailure, Outcome, outcome_of
from agentgym_env.printable import one_line
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.config.run import RolloutLimits
from agentgym_train.engines.base import EngineLost
from agentgym_train.rollout.actors import Actor, ActorOutput, draw_seed
from agentgym_train.rollout.tool_calls import ToolCalls
from agentgym_train.rollout.wrapping import WrappedSession, Wrapping

Party = Literal["policy", "environment"]

logger = logging.getLogger(__name__)

REPORT_AFTER_S: Final = 20.0
"""A call to an environment that takes longer is logged."""
_NAMED = 3
"""Calls that such a line names."""


class Deadline:
    """The deadline of an episode, and how long it waited for policy and environment.

    Time does not count while calls are paused. Waiting for a limit counts as waiting for what is
    limited.
    """

    def __init__(self, timeout_s: float = 0.0, episode: str = "") -> None:
        self.waited: dict[Party, float] = {"policy": 0.0, "environment": 0.0}
        self.episode = episode
        """Environment and task."""
        self.running: tuple[Party, str, float] | None = None
        """The call that is running: to whom, for what, and since when by the loop's clock."""
        self.timeout_s = timeout_s
        self._left_s = timeout_s
        self._timeout: asyncio.Timeout | None = None
        self._held = False

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[asyncio.Timeout]:
        """Raise `TimeoutError` within when the remaining time is over."""
        began = asyncio.get_running_loop().time()
        when = began + self._left_s if self.timeout_s and not self._held else None
        async with asyncio.timeout_at(when) as self._timeout:
            try:
                yield self._timeout
            finally:
                self.pause()
                self._timeout, self._held = None, False

    @contextmanager
    def waiting(self, party: Party) -> Iterator[None]:
        """Count the time within."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.waited[party] += time.monotonic() - began

    def pause(self) -> None:
        """Stop the clock."""
        if self._timeout is None or not self.timeout_s or self._held:
            return
        self._held = True
        when = self._timeout.when()
        if when is not None and not self._timeout.expired():
            self._left_s = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def resume(self) -> None:
        """Restart the clock."""
        if self._timeout is None or not self._held:
            return
        self._held = False
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)


class Limiter:
    """Limits the concurrent calls of one kind."""

    def __init__(self, limit: int, concurrency_limits: ConcurrencyLimits, party: Party) -> None:
        self._slots = asyncio.Semaphore(limit) if limit else None
        self._concurrency_limits = concurrency_limits
        self._party: Party = party
        self.waiting = 0
        """Episodes in a call or waiting for a slot."""

    @asynccontextmanager
    async def call(self, deadline: Deadline, what: str = "a step") -> AsyncIterator[None]:
        """Enter when a slot is free and calls are not paused."""
        self.waiting += 1
        with deadline.waiting(self._party):
            try:
                if self._slots is not None:
                    await self._slots.acquire()
                try:
                    async with self._concurrency_limits.running():
                        deadline.running = (self._party, what, asyncio.get_running_loop().time())
                        yield
                finally:
                    deadline.running = None
                    if self._slots is not None:
                        self._slots.release()
            finally:
                self.waiting -= 1


class ConcurrencyLimits:
    """Limits all calls of the episodes on one event loop.

    Calls can be paused: then no call is running and none begins, so that weights can change in the
    middle of episodes. After `resume` their next turns use the new weights.
    """

    def __init__(self, limits: RolloutLimits | None = None) -> None:
        self.limits = limits or RolloutLimits()
        self.policy = Limiter(self.limits.engine_concurrency, self, "policy")
        self.environment = Limiter(self.limits.env_concurrency, self, "environment")
        self.turns = 0
        """Turns taken so far."""
        self.tokens = 0
        """Tokens sampled so far."""
        self._calls = 0
        self._deadlines: set[Deadline] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._reported: tuple[float, float] = (0.0, 0.0)
        """When the longest call that was reported began, and after how long it was."""

    @contextmanager
    def episode(self, name: str = "") -> Iterator[Deadline]:
        """The deadline of an episode, which pauses with the calls; `name` is for the log."""
        deadline = Deadline(self.limits.episode_timeout_s, name)
        if self._timer is None:
            self._look_later()
        self._deadlines.add(deadline)
        try:
            yield deadline
        finally:
            self._deadlines.discard(deadline)
            if self._timer is not None and not self._deadlines:
                self._timer.cancel()
                self._timer = None

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REPORT_AFTER_S / 20, self._look)

    def _look(self) -> None:
        """Log which environment is waited for: after 20 s, 40 s, 80 s and so on."""
        now = asyncio.get_running_loop().time()
        late = sorted(
            (since, f"{what} of {deadline.episode}")
            for deadline in self._deadlines
            for party, what, since in filter(None, [deadline.running])
            if party == "environment" and now - since >= REPORT_AFTER_S
        )
        if late:
            since, after_s = late[0][0], REPORT_AFTER_S
            if since == self._reported[0]:
                after_s = 2 * self._reported[1]
            if now - since >= after_s:
                self._reported = (since, now - since)
                names = list(dict.fromkeys(name for _, name in late))
                more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
                logger.warning(
                    "waiting for the environment for %.0f s: %s%s",
                    now - since, ", ".join(names[:_NAMED]), more,
                )  # fmt: skip
        self._look_later()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Wait until calls are not paused, then count one call."""
        while not self._open.is_set():
            await self._open.wait()
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def pause(self) -> None:
        """Let no call begin, and wait for the running ones."""
        self._open.clear()
        for deadline in self._deadlines:
            deadline.pause()
        await self._idle.wait()

    def resume(self) -> None:
        """Let calls begin again."""
        if not self._open.is_set():
            for deadline in self._deadlines:
                deadline.resume()
            self._open.set()


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


class DeadlinePassed(EnvironmentLost):
    """The time limit passed, mostly while waiting for the environment."""


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


def _unpaid(turn: Turn) -> Turn:
    if not turn.reward:
        return turn
    info = {**turn.info, "reward_of_earlier_trial": turn.reward}
    return msgspec.structs.replace(turn, reward=0.0, info=info)


__all__ = ["EpisodeSpec", "RolloutLimits", "Rollouts"]


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
        concurrency: int = 256,
        concurrency_limits: ConcurrencyLimits | None = None,
        wrapping: Wrapping | None = None,
    ) -> None:
        """`concurrency` is the maximum number of concurrent episodes."""
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
        actor, limits, wrapping = self._new_actor(), self.concurrency_limits, self._wrapping
        if isinstance(actor, EpisodeActor):
            return await actor.play(self._client, start, horizon, limits, clock, wrapping, step)
        return await EpisodeRun(actor, start, horizon, limits, clock, wrapping).play(
            self._client, step
        )

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
