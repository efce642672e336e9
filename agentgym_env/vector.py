"""RemoteVectorEnv: many environments behind servers, stepped with one request per server.

```python
envs = gymnasium.make_vec("agentgym/TextCraft-v0", num_envs=64)
observations, infos = envs.reset(seed=0)
while ...:
    observations, rewards, terminations, truncations, infos = envs.step(actions)
    ended = terminations | truncations
    if ended.any():
        observations, infos = envs.reset(options={"reset_mask": ended})
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from agentgym_env.client.opening import CallLimits
from agentgym_env.client.sync import Session
from agentgym_env.errors import BadRequest, EnvironmentLost, EpisodeFailure, EpisodeOver, at_fault
from agentgym_env.remote import (
    cannot_copy,
    checked_card,
    connect,
    replaced_client,
    wait_before_replacing,
)
from agentgym_env.spaces import TextSpace
from agentgym_env.text_env import (
    TaskSet,
    TextEnv,
    check_options,
    check_render_mode,
    draw_episode_seed,
)
from agentgym_env.wire import StepReply

Observations = tuple[str, ...]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class RemoteVectorEnv(VectorEnv[Observations, Sequence[str], Any]):
    """`num_envs` parallel episodes; observations are a tuple of texts.

    Episodes are reset by the caller (`AutoresetMode.DISABLED`, by `reset_mask`) unless another
    mode is asked for: the next-step mode would waste one generation an episode. `server` and
    `token` are as for `RemoteEnv`.

    A lost episode is truncated, and its reward is NaN: it is not a reward of 0, and a sum or a mean
    that includes it is NaN too. `infos["error"]`, `infos["failure"]` and `infos["at_fault"]`
    describe the failure, and the mask `infos["_error"]` marks the lost episodes. In the same-step
    mode they are in `infos["final_info"]`. The other episodes continue. A reset opens a new
    session, and starts a new local server if that has ended.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        server: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.DISABLED,
        timeout_s: float = 60.0,
        retries: int = 3,
        **env_kwargs: Any,
    ) -> None:
        if num_envs < 1:
            raise BadRequest(f"num_envs is at least 1, got {num_envs}")
        check_render_mode(render_mode, env_id)
        _check_time_limit(max_episode_steps)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self._mode = AutoresetMode(autoreset_mode)
        self.metadata = {**TextEnv.metadata, "autoreset_mode": self._mode}
        self._max_turns = max_episode_steps if max_episode_steps != -1 else None
        self._limits = CallLimits(timeout_s, retries)
        self._client, self._local = connect(
            env_id, server, env_kwargs, token=token, limits=self._limits
        )
        try:
            card = checked_card(self._client, env_id)
        except BaseException:
            self._release()
            raise
        self.instruction = card.instruction
        """The instruction for the policy, given before the first observation."""
        self.single_observation_space = TextSpace(card.observation_max_length)
        self.single_action_space = TextSpace(card.action_max_length)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._sessions: list[Session | None] = [None] * num_envs
        self._observations = [""] * num_envs
        self._turns = np.full(num_envs, -1, dtype=np.int64)  # -1 before the first reset
        self._ended = np.ones(num_envs, dtype=np.bool_)
        # An episode that could not be started; the next step says so.
        self._failures: list[EpisodeFailure | None] = [None] * num_envs

    def __getstate__(self) -> dict[str, Any]:
        """Raise `CannotCopy`: the episodes are in the server."""
        raise cannot_copy(self)

    @cached_property
    def tasks(self) -> TaskSet:
        """The environment's tasks, in named splits."""
        return self._client.task_set()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Start episodes: all of them, or those of `options["reset_mask"]`.

        An int seeds environment i with `seed + i`. `options` may name `split` and `task`; `task`
        may be a list with one id for each environment.
        """
        seeds = self._seeds(seed)
        named = dict(options or {})
        mask = named.pop("reset_mask", None)
        chosen = np.ones(self.num_envs, np.bool_) if mask is None else self._checked_mask(mask)
        infos: dict[str, Any] = {}
        started = self._reset_some(np.flatnonzero(chosen).tolist(), seeds, named)
        for index, info in started.items():
            infos = self._add_info(infos, info, index)
        lost = [failure for failure in self._failures if failure is not None]
        if len(lost) == self.num_envs:
            raise lost[0]
        return tuple(self._observations), infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[Observations, Floats, Flags, Flags, dict[str, Any]]:
        """Take one turn in every episode; raises `EpisodeOver` if one needs a reset."""
        self._check_actions(actions)
        restarted: dict[int, dict[str, Any]] = {}
        if self._mode is AutoresetMode.NEXT_STEP:
            restarted = self._restart(self._ended & (self._turns >= 0))
        if self._ended.any():
            raise EpisodeOver(
                f"episodes {np.flatnonzero(self._ended).tolist()} have not begun or have ended; "
                "reset them, by options={'reset_mask': ...} if others still run"
            )
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminations = np.zeros(self.num_envs, dtype=np.bool_)
        truncations = np.zeros(self.num_envs, dtype=np.bool_)
        found: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index, info in restarted.items():
            found[index] = info
        playing = [i for i in range(self.num_envs) if i not in restarted]
        for index, reply in zip(playing, self._step_some(playing, actions), strict=True):
            self._turns[index] += 1
            if isinstance(reply, EpisodeFailure):
                truncations[index], rewards[index] = True, np.nan
                found[index] = failure_info(reply)
                continue
            self._observations[index] = reply.observation
            rewards[index] = reply.reward
            terminations[index] = reply.terminated
            truncations[index] = reply.truncated or self._turns[index] == self._max_turns
            found[index] = reply.info
        self._ended = terminations | truncations
        if self._mode is AutoresetMode.SAME_STEP and self._ended.any():
            self._restart_ended(found)
        infos: dict[str, Any] = {}
        for index, info in enumerate(found):
            infos = self._add_info(infos, info, index)
        return tuple(self._observations), rewards, terminations, truncations, infos

    def expert_actions(self) -> list[str | None]:
        """The oracle's action for each episode's next turn; None if it has none."""
        playing = [(i, s) for i, s in enumerate(self._sessions) if s is not None]
        actions: list[str | None] = [None] * self.num_envs
        replies = self._client.expert_actions([session for _, session in playing])
        for (index, _), reply in zip(playing, replies, strict=True):
            if isinstance(reply, Exception) and not isinstance(reply, EpisodeFailure):
                raise reply
            actions[index] = None if isinstance(reply, Exception) else reply
        return actions

    def render(self) -> tuple[Any, ...] | None:
        """The last observations."""
        return tuple(self._observations) if self.render_mode == "ansi" else None

    def close_extras(self, **kwargs: Any) -> None:
        """End the sessions, and the local server if nobody else uses it."""
        self._client.close_many([s for s in getattr(self, "_sessions", ()) if s is not None])
        self._release()

    def _release(self) -> None:
        self._client.close()
        if self._local is not None:
            self._local.close()

    def _restart_ended(self, found: list[dict[str, Any]]) -> None:
        """The same-step mode: the observation is the next episode's, the last one is in infos."""
        last = list(self._observations)
        for index, info in self._restart(self._ended).items():
            found[index] = {"final_obs": last[index], "final_info": found[index], **info}

    def _restart(self, which: Flags) -> dict[int, dict[str, Any]]:
        if not which.any():
            return {}  # a step without a reset does not replace a server that ended
        return self._reset_some(np.flatnonzero(which).tolist(), [None] * self.num_envs, {})

    def _reset_some(
        self, indices: Sequence[int], seeds: Sequence[int | None], options: Mapping[str, Any]
    ) -> dict[int, dict[str, Any]]:
        """Start these episodes, on new sessions where needed; return their infos."""
        tasks = self._tasks_of(options)
        self._ended[list(indices)] = (
            True  # until they have begun: a refusal may leave some half-way
        )
        episode_seeds = {index: self._episode_seed(index, seeds[index]) for index in indices}
        infos: dict[int, dict[str, Any]] = {}
        waiting = list(indices)
        replaced = self._replace_server(0.0)
        # What is lost is tried once more; sessions whose process ended, `retries` times more.
        for attempt in range(2 + self._limits.retries):
            self._open_sessions(waiting)
            items = [(i, s) for i in waiting if (s := self._sessions[i]) is not None]
            replies = self._client.reset_many(
                [(s, episode_seeds[i], tasks[i], options.get("split")) for i, s in items]
            )
            for (index, _), reply in zip(items, replies, strict=True):
                if isinstance(reply, EpisodeFailure):
                    self._failures[index] = reply
                    infos[index] = failure_info(reply)
                elif isinstance(reply, Exception):
                    raise reply
                else:
                    self._failures[index] = None
                    self._observations[index] = reply.observation
                    infos[index] = reply.info
            lost = {i: f for i in waiting if isinstance(f := self._failures[i], EnvironmentLost)}
            waiting = [i for i, f in lost.items() if not attempt or f.code == "unknown_session"]
            if waiting and not replaced:
                replaced = self._replace_server(max(map(wait_before_replacing, lost.values())))
        for index in indices:
            self._turns[index], self._ended[index] = 0, False
            failure = self._failures[index]
            if failure is not None:
                self._observations[index] = ""
                infos[index] = failure_info(failure)
        return infos

    def _replace_server(self, wait_s: float) -> bool:
        """Start another local server if the process has ended; all sessions are lost then."""
        client = replaced_client(self._client, self._local, self._limits, wait_s)
        if client is None:
            return False
        self._client = client
        gone = EnvironmentLost("the local server ended during the episode", code="unreachable")
        for session in self._sessions:
            if session is not None:
                session.state.lose(gone)
        return True

    def _open_sessions(self, indices: Iterable[int]) -> None:
        """Open a new session for each episode without a usable one."""
        lacking = [
            index
            for index in indices
            if (s := self._sessions[index]) is None or s.state.is_lost or s.is_to_move
        ]
        if not lacking:
            return
        self._client.close_many([s for i in lacking if (s := self._sessions[i]) is not None])
        try:
            opened = self._client.open_many(len(lacking))
        except EnvironmentLost as failure:
            for index in lacking:
                self._sessions[index], self._failures[index] = None, failure
            return
        for index, session in zip(lacking, opened, strict=True):
            self._sessions[index] = session

    def _step_some(
        self, indices: Sequence[int], actions: Sequence[str]
    ) -> list[StepReply | EpisodeFailure]:
        """The results of these turns."""
        results: dict[int, StepReply | EpisodeFailure] = {}
        items: list[tuple[int, Session]] = []
        for index in indices:
            failure, session = self._failures[index], self._sessions[index]
            if failure is not None:
                results[index] = failure
            elif session is not None:
                items.append((index, session))
        replies = self._client.step_many([(session, actions[i]) for i, session in items])
        for (index, _), reply in zip(items, replies, strict=True):
            if isinstance(reply, Exception) and not isinstance(reply, EpisodeFailure):
                raise reply
            results[index] = reply
        return [results[index] for index in indices]

    def _episode_seed(self, index: int, seed: int | None) -> int:
        # Each environment has its own stream, as it would alone.
        generator = self._generators[index]
        if seed is not None or generator is None:
            generator, _ = seeding.np_random(seed)
            self._generators[index] = generator
        return draw_episode_seed(generator) if seed is None else seed

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"one seed for each of {self.num_envs} environments, got {len(seed)}")
        return seed

    def _tasks_of(self, options: Mapping[str, Any]) -> Sequence[str | None]:
        check_options(options)
        task = options.get("task")
        if task is None or isinstance(task, str):
            return [task] * self.num_envs
        if not isinstance(task, Sequence) or len(task) != self.num_envs:
            raise BadRequest(f"task is an id, or a list of {self.num_envs} ids, got {task!r}")
        return task

    def _checked_mask(self, mask: Any) -> Flags:
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] is a numpy array of bool, got {mask!r}")
        if mask.shape != (self.num_envs,):
            raise ValueError(
                f"options['reset_mask'] has shape ({self.num_envs},), got {mask.shape}"
            )
        if not mask.any():
            raise ValueError("options['reset_mask'] names at least one environment, got none")
        return mask

    def _check_actions(self, actions: Sequence[str]) -> None:
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise BadRequest(
                f"one action for each of {self.num_envs} environments, got {actions!r}"
            )
        for index, action in enumerate(actions):
            if not isinstance(action, str):
                raise BadRequest(f"action {index} is a str, got {type(action).__name__}")


def _check_time_limit(max_episode_steps: int | None) -> None:
    """Raise the error types of `gymnasium.make`; None and -1 are no limit."""
    if max_episode_steps in (None, -1):
        return
    got = f"got {max_episode_steps!r}"
    if not isinstance(max_episode_steps, int):
        raise TypeError(f"max_episode_steps is a whole number, {got}")
    if max_episode_steps <= 0:
        raise ValueError(f"max_episode_steps is at least 1, or -1 for no limit, {got}")


def failure_info(failure: EpisodeFailure) -> dict[str, Any]:
    """The info of an episode that was lost."""
    return {
        "failure": failure.kind,
        "at_fault": at_fault(failure.kind),
        "error": str(failure),
    }
