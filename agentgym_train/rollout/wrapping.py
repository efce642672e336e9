"""Applies ordinary `gymnasium.Wrapper`s to the episodes of a rollout.

An episode's session is exposed as a synchronous environment, whose calls wait for the event loop.
The wrappers run in worker threads, so they may also change actions or take several steps. Episodes
without wrappers do not use this module.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import gymnasium

from agentgym_env.client.aio import AsyncSession
from agentgym_env.errors import AgentGymError, EpisodeOver, WrapperFailed
from agentgym_env.spaces import TextSpace
from agentgym_env.text_env import TaskSet, TextEnv
from agentgym_env.wire import EnvCard, ResetReply, StepReply
from agentgym_env.wrappers import NamedWrapper, WrapperSpec, named_wrappers

_T = TypeVar("_T")
_WORLDS_OWN = ("success", "score")
"""Keys of `info` that always come from the environment, even if a wrapper changes them."""


class Wrapping:
    """The wrappers of a run and their threads."""

    def __init__(
        self, specs: Sequence[WrapperSpec], card: EnvCard, tasks: TaskSet, concurrency: int
    ) -> None:
        """Load the wrappers and apply them once to an unused environment, to check them."""
        self._named = named_wrappers(specs)
        self._makers = [named.load() for named in self._named]
        self._card = card
        self._tasks = tasks
        self._threads = ThreadPoolExecutor(concurrency, "wrappers")
        self.names = ", ".join(named.name for named in self._named)
        self._wrapped(SessionEnv(None, None, card, tasks))

    async def wrap(self, session: AsyncSession) -> WrappedSession:
        """Apply the wrappers to a session; raises `WrapperFailed`."""
        base = SessionEnv(session, asyncio.get_running_loop(), self._card, self._tasks)
        return WrappedSession(
            session, base, await self.run(base, lambda: self._wrapped(base)), self
        )

    async def run(self, base: SessionEnv, work: Callable[[], _T]) -> _T:
        """Run a call of the wrapped environment in a thread; raises `WrapperFailed`."""

        def guarded() -> _T:
            try:
                return work()
            except Exception as error:
                if error is base.failure:
                    raise
                raise self._failed(error) from error

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, guarded)
        except asyncio.CancelledError:
            base.cancel()
            raise

    def close(self) -> None:
        """Shut down the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _wrapped(self, base: SessionEnv) -> gymnasium.Env[str, str]:
        env: gymnasium.Env[str, str] = base
        for named, make in zip(self._named, self._makers, strict=True):
            try:
                env = make(env)
            except Exception as error:
                raise _failure(named, error) from error
            if not isinstance(env, gymnasium.Env):
                raise WrapperFailed(
                    f"wrapper {named.name} returned {type(env).__name__}, which is not a "
                    "gymnasium.Env; use a gymnasium.Wrapper"
                )
        return env

    def _failed(self, error: Exception) -> WrapperFailed:
        """A `WrapperFailed` that names the innermost wrapper in the traceback."""
        if isinstance(error, WrapperFailed):
            return error
        blamed, trace = None, error.__traceback__
        by_class = dict(zip(map(_class_of, self._makers), self._named, strict=True))
        while trace is not None:
            owner = type(trace.tb_frame.f_locals.get("self"))
            blamed = by_class.get(owner, blamed)
            trace = trace.tb_next
        return _failure(blamed, error, self.names)


class SessionEnv(gymnasium.Env[str, str]):
    """An episode's session as a synchronous environment; call it outside the event loop."""

    metadata: dict[str, Any] = dict(TextEnv.metadata)  # noqa: RUF012

    def __init__(
        self,
        session: AsyncSession | None,
        loop: asyncio.AbstractEventLoop | None,
        card: EnvCard,
        tasks: TaskSet,
    ) -> None:
        self._session = session
        self._loop = loop
        self._pending: Future[Any] | None = None
        self._cancelled = False
        self.instruction = card.instruction
        """The instruction of the environment."""
        self.tasks = tasks
        """The environment's tasks, in named splits."""
        self.observation_space = TextSpace(card.observation_max_length)
        self.action_space = TextSpace(card.action_max_length)
        self.info: Mapping[str, Any] = {}
        """The environment's last info, before any wrapper."""
        self.failure: AgentGymError | None = None
        """The error that the session itself raised, if any."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode. `options` may name `task` or `split`."""
        super().reset(seed=seed)
        named = options or {}
        reply = self._wait(
            lambda session: session.reset(
                seed=seed, task=named.get("task"), split=named.get("split")
            )
        )
        self.info = reply.info
        return reply.observation, dict(reply.info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        reply = self._wait(lambda session: session.step(action))
        self.info = reply.info
        return reply.observation, reply.reward, reply.terminated, reply.truncated, dict(reply.info)

    def available_actions(self) -> list[str] | None:
        """The actions available in this turn; None if the environment does not list them."""
        return self._wait(lambda session: session.available_actions())

    def expert_action(self) -> str | None:
        """The oracle's action for this turn; None if it has no further action."""
        return self._wait(lambda session: session.expert_action())

    def cancel(self) -> None:
        """Cancel the running call and reject further ones: the episode is over."""
        self._cancelled = True
        if self._pending is not None:
            self._pending.cancel()

    def _wait(self, call: Callable[[AsyncSession], Coroutine[Any, Any, _T]]) -> _T:
        if self._session is None or self._loop is None or self._cancelled:
            raise RuntimeError(
                "the environment has no running episode: call it only in a wrapper's reset and step"
            )
        self._pending = asyncio.run_coroutine_threadsafe(call(self._session), self._loop)
        try:
            result: _T = self._pending.result()
        except EpisodeOver:
            raise  # a wrapper called step after the end of the episode
        except AgentGymError as failure:
            self.failure = failure
            raise
        return result


class WrappedSession(AsyncSession):
    """A session whose `reset` and `step` apply wrappers; created by `Wrapping.wrap`."""

    def __init__(
        self,
        session: AsyncSession,
        base: SessionEnv,
        env: gymnasium.Env[str, str],
        wrapping: Wrapping,
    ) -> None:
        super().__init__(session.state, session.gatherings)
        self._base = base
        self._env = env
        self._wrapping = wrapping
        self._turn = 0

    async def reset(
        self, *, seed: int | None = None, task: str | None = None, split: str | None = None
    ) -> ResetReply:
        """Start an episode."""
        given = {"task": task, "split": split}
        options = {name: value for name, value in given.items() if value is not None}
        observation, info = await self._wrapping.run(
            self._base, lambda: self._env.reset(seed=seed, options=options)
        )
        self._turn = 0
        return ResetReply(self.state.name, 0, self._text(observation), self._info(info))

    async def step(self, action: str) -> StepReply:
        """Take a step."""
        observation, reward, terminated, truncated, info = await self._wrapping.run(
            self._base, lambda: self._env.step(action)
        )
        self._turn += 1
        return StepReply(
            self.state.name,
            self._turn,
            self._text(observation),
            self._reward(reward),
            bool(terminated),
            bool(truncated),
            self._info(info),
        )

    async def close(self) -> None:
        """Close the wrappers and the session."""
        try:
            await self._wrapping.run(self._base, self._env.close)
        finally:
            await super().close()

    def _text(self, observation: Any) -> str:
        if isinstance(observation, str):
            return observation
        raise WrapperFailed(
            f"the wrappers {self._wrapping.names} returned an observation of type "
            f"{type(observation).__name__}; return a str"
        )

    def _reward(self, reward: Any) -> float:
        value = float(reward)
        if math.isfinite(value):
            return value
        raise WrapperFailed(
            f"the wrappers {self._wrapping.names} returned the reward {value}; return a finite one"
        )

    def _info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: self._base.info[name] for name in _WORLDS_OWN if name in self._base.info}
        return {**info, **kept}


def _class_of(maker: Callable[..., Any]) -> Any:
    """The class that a loaded wrapper creates; the wrapper itself if it is a function."""
    return getattr(maker, "func", maker)


def _failure(named: NamedWrapper | None, error: Exception, names: str = "") -> WrapperFailed:
    who = f"wrapper {named.name}" if named is not None else f"one of the wrappers {names}"
    return WrapperFailed(
        f"{who} raised {type(error).__name__}: {error}. Fix it, or remove it from `wrappers`"
    )
