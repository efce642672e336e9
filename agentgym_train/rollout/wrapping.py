"""Applies ordinary `gymnasium.Wrapper`s to the episodes of a rollout.

An episode's session is exposed as a synchronous environment, whose calls wait for the event loop.
The wrappers run in worker threads, so they may also change actions or take several steps. Episodes
without wrappers do not use this module.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, Final, SupportsFloat, TypeVar

import gymnasium
import msgspec
import numpy as np

from agentgym_env.client.aio import AsyncSession
from agentgym_env.errors import AgentGymError, EpisodeOver, WrapperFailed
from agentgym_env.spaces import TextSpace
from agentgym_env.text_env import TaskSet, TextEnv
from agentgym_env.wire import EnvCard, ResetReply, StepReply
from agentgym_env.wrappers import WrapperSpec, named_wrappers

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_ENVIRONMENTS_OWN = ("success", "score")
"""Keys of `info` that always come from the environment, even if a wrapper changes them."""
_TEXT: Final = (TextSpace, gymnasium.spaces.Text)
_CLOSE_TIMEOUT_S: Final = 10.0
"""Time limit of a wrapper's `close`."""
_UNWIND_TIMEOUT_S: Final = 1.0
"""Time that a cancelled call has to return before its wrapper counts as hung."""
_RETURNED: Final = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
    "close": (),
}
"""Method of an environment -> what it returns; () is not checked."""


class Wrapping:
    """The wrappers of a run and their threads.

    Each call runs in a daemon thread of its own, because a wrapper may never return: such a thread
    must not block others, nor the end of the process.
    """

    def __init__(
        self, specs: Sequence[WrapperSpec], card: EnvCard, tasks: TaskSet, concurrency: int
    ) -> None:
        """Load the wrappers and apply them once to an unused environment, to check them."""
        self._named = named_wrappers(specs)
        self._makers = [named.load() for named in self._named]
        self._card = card
        self._tasks = tasks
        self._concurrency = concurrency
        self._abandoned: list[Future[Any]] = []
        self.names = ", ".join(named.name for named in self._named)
        self.apply(SessionEnv(None, None, card, tasks))

    def wrap(self, session: AsyncSession) -> WrappedSession:
        """A session that applies the wrappers from its `reset` on."""
        base = SessionEnv(session, asyncio.get_running_loop(), self._card, self._tasks)
        return WrappedSession(session, base, self)

    async def run(self, base: SessionEnv, work: Callable[[], _T]) -> _T:
        """Run a call of the wrapped environment in a thread; raises `WrapperFailed`."""
        self._abandoned = [call for call in self._abandoned if not call.done()]
        if len(self._abandoned) >= self._concurrency:
            raise WrapperFailed(
                f"{len(self._abandoned)} calls of the wrappers {self.names} did not return, the "
                f"last in {base.current or 'another episode'}; fix or remove the wrapper"
            )
        call: Future[_T] = Future()
        call.set_running_or_notify_cancel()

        def target() -> None:
            try:
                call.set_result(work())
            except BaseException as error:  # also SystemExit: the event loop raises it
                is_named = isinstance(error, WrapperFailed) or not isinstance(error, Exception)
                is_known = is_named or error is base.failure
                call.set_exception(error if is_known else _failure(self.names, error))

        Thread(target=target, name="wrappers", daemon=True).start()
        base.call = call
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            base.cancel()
            self._abandoned.append(call)
            raise

    def apply(self, base: SessionEnv) -> gymnasium.Env[str, str]:
        """The environment in the wrappers; what each of them returns is checked."""
        env: gymnasium.Env[str, str] = base
        for named, make in zip(self._named, self._makers, strict=True):
            try:
                env = make(env)
            except WrapperFailed:
                raise
            except Exception as error:
                raise _failure(named.name, error) from error
            if not isinstance(env, gymnasium.Env):
                raise WrapperFailed(
                    f"wrapper {named.name} returned {type(env).__name__}, which is not a "
                    "gymnasium.Env; use a gymnasium.Wrapper"
                )
            # On the instance: wrappers must find each other's attributes through `self.env`.
            for method in _RETURNED:
                setattr(env, method, base.watched(named.name, env, method))
        return env


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
        self.call: Future[Any] | None = None
        """The current or last call of the wrapped environment."""
        self._active: list[str] = []

    @property
    def current(self) -> str:
        """The name of the wrapper whose code runs; empty if none runs."""
        return self._active[-1] if self._active else ""

    def watched(self, name: str, env: gymnasium.Env[Any, Any], method: str) -> Callable[..., Any]:
        """A method of a wrapper that names it if it raises, and checks its result."""
        own, returned = getattr(env, method), _RETURNED[method]

        def call(*args: Any, **kwargs: Any) -> Any:
            if method == "step":
                self.check_action(env, *args)
            self._active.append(name)
            try:
                result = own(*args, **kwargs)
                if returned and (wrong := _what_is_wrong(env, returned, result)):
                    raise WrapperFailed(f"{method} of wrapper {name} returned {wrong}")
            except AgentGymError:
                raise
            except Exception as error:
                raise _failure(name, error) from error
            finally:
                self._active.pop()
            return result

        return call

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
        self.check_action(self, action)
        reply = self._wait(lambda session: session.step(action))
        self.info = reply.info
        return reply.observation, reply.reward, reply.terminated, reply.truncated, dict(reply.info)

    def available_actions(self) -> list[str] | None:
        """The actions available in this turn; None if the environment does not list them."""
        return self._wait(lambda session: session.available_actions())

    def expert_action(self) -> str | None:
        """The oracle's action for this turn; None if it has no further action."""
        return self._wait(lambda session: session.expert_action())

    def check_action(self, env: gymnasium.Env[Any, Any], action: Any) -> None:
        """Raise `WrapperFailed` if a wrapper passes what is no text to an environment of texts."""
        if isinstance(env.action_space, _TEXT) and not isinstance(action, str):
            raise WrapperFailed(
                f"step of wrapper {self.current} passed an action of type {type(action).__name__}; "
                "pass a str"
            )

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

    def __init__(self, session: AsyncSession, base: SessionEnv, wrapping: Wrapping) -> None:
        super().__init__(session.state, session.gatherings)
        self._base = base
        self._wrapping = wrapping
        self._env: gymnasium.Env[str, str] | None = None
        self._turn = 0

    @property
    def current_wrapper(self) -> str:
        """The name of the wrapper whose code runs, such as one that hangs; empty if none runs."""
        return self._base.current

    async def reset(
        self, *, seed: int | None = None, task: str | None = None, split: str | None = None
    ) -> ResetReply:
        """Start an episode."""
        given = {"task": task, "split": split}
        options = {name: value for name, value in given.items() if value is not None}

        def work() -> tuple[Any, Any]:
            self._env = self._env or self._wrapping.apply(self._base)
            return self._env.reset(seed=seed, options=options)

        observation, info = await self._wrapping.run(self._base, work)
        self._turn = 0
        return ResetReply(self.state.name, 0, self._text(observation), self._info(info))

    async def step(self, action: str) -> StepReply:
        """Take a step."""
        env = self._env
        if env is None:
            raise EpisodeOver("call reset before step")
        observation, reward, terminated, truncated, info = await self._wrapping.run(
            self._base, lambda: env.step(action)
        )
        self._turn += 1
        return StepReply(
            self.state.name,
            self._turn,
            self._text(observation),
            float(reward),
            bool(terminated),
            bool(truncated),
            self._info(info),
        )

    async def close(self) -> None:
        """Close the wrappers, unless one of them hangs, and the session."""
        try:
            await self._close_wrappers()
        finally:
            await super().close()

    async def _close_wrappers(self) -> None:
        if self._base.call is not None and not self._base.call.done():
            returned = asyncio.wrap_future(self._base.call)
            await asyncio.wait([returned], timeout=_UNWIND_TIMEOUT_S)
            if not returned.cancel():
                returned.exception()  # belongs to the episode, which is over
            else:
                logger.warning("wrapper %s hangs and is not closed", self.current_wrapper)
                return
        if self._env is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S) as limit:
                await self._wrapping.run(self._base, self._env.close)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise WrapperFailed(
                f"close of wrapper {self.current_wrapper} did not return within "
                f"{_CLOSE_TIMEOUT_S:g} s; fix it, or remove the wrapper from `wrappers`"
            ) from error

    def _text(self, observation: Any) -> str:
        if isinstance(observation, str):
            return observation
        raise WrapperFailed(
            f"the wrappers {self._wrapping.names} returned an observation of type "
            f"{type(observation).__name__}; return a str"
        )

    def _info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        own = {n: self._base.info[n] for n in _ENVIRONMENTS_OWN if n in self._base.info}
        try:
            plain: dict[str, Any] = msgspec.to_builtins({**info, **own}, enc_hook=_as_list)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise WrapperFailed(
                f"the wrappers {self._wrapping.names} returned an info that is not JSON: {error}; "
                "use numbers, strings, lists and dicts"
            ) from error
        return plain


def _what_is_wrong(env: gymnasium.Env[Any, Any], names: Sequence[str], result: Any) -> str:
    """What a wrapper should not have returned, and what to return; empty if it is right."""
    if not isinstance(result, tuple) or len(result) != len(names):
        found = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"{result!r:.80}"
        return f"{found}; return ({', '.join(names)})"
    values = dict(zip(names, result, strict=True))
    # Between two wrappers, another type is possible if the inner one declares another space.
    if isinstance(env.observation_space, _TEXT) and not isinstance(values["observation"], str):
        return f"an observation of type {type(values['observation']).__name__}; return a str"
    if not isinstance(values["info"], Mapping):
        return f"an info of type {type(values['info']).__name__}; return a dict"
    reward = values.get("reward", 0.0)
    if not isinstance(reward, SupportsFloat) or not math.isfinite(float(reward)):
        return f"the reward {reward!r:.80}; return a finite number"
    for name in ("terminated", "truncated"):
        if not isinstance(values.get(name, False), int | np.bool_):
            return f"{name} {values[name]!r:.80}; return a bool"
    return ""


def _as_list(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"no JSON for {type(value).__name__}")


def _failure(names: str, error: BaseException) -> WrapperFailed:
    several = "one of the wrappers" if "," in names else "wrapper"
    return WrapperFailed(
        f"{several} {names} raised {type(error).__name__}: {error}. Fix or remove it"
    )
