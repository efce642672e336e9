"""A world on one of AgentGym's own servers, as an ordinary `gymnasium.Env`.

`gymnasium.make("agentgym/TextCraft-v0", server="agentgym+http://host:port")`. The server numbers
neither turns nor episodes, so no call is ever repeated: one that fails has lost its episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium
import msgspec

from agentgym_env.client.transports import Call, HttpTransport
from agentgym_env.errors import BadRequest, EnvironmentFault, EnvironmentLost, EpisodeOver
from agentgym_env.registry import env_class
from agentgym_env.spaces import TextSpace, clean_text
from agentgym_env.text_env import (
    TaskSet,
    TextEnv,
    check_render_mode,
    choose_task,
    draw_episode_seed,
)

SCHEME: Final = "agentgym+"
"""Begins the address, as in `agentgym+http://host:port`."""
SPLIT: Final = "all"
_MAX_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class World:
    """What one of AgentGym's worlds needs to be spoken to."""

    tasks: int
    """It numbers its tasks from 0."""
    reward_unit: float = 1.0
    """What of its rewards is a reward of 1."""
    solved_at: float | None = None
    """The score that solves a task; None: any that is above 0 at the end."""
    first: tuple[str, ...] = ("observation",)
    """The fields of the first observation, a line each."""
    spelling: tuple[str, str] = ("", "")
    """How an action may begin, and how it has to begin there."""


WORLDS: Final = {
    # Level n % 40 with seed n // 40: as many numbers as we have seeds.
    "agentgym/BabyAI-v0": World(tasks=40 * 205, spelling=("pick up ", "pickup ")),
    "agentgym/SciWorld-v0": World(
        tasks=4639, reward_unit=100.0, solved_at=1.0, first=("task_description", "observation")
    ),
    "agentgym/TextCraft-v0": World(tasks=544),
}


class OriginalEnv(gymnasium.Env[str, str]):
    """One environment on an AgentGym server. Task ids are its numbers, in the only split `all`.

    The server ends no session by itself: `close()` it. Its episodes take no seed; a seed chooses
    the task where none is named. `token` is sent as a bearer token, for a proxy that requires one;
    the server itself has none.
    """

    metadata: dict[str, Any] = dict(TextEnv.metadata)  # noqa: RUF012

    def __init__(
        self,
        env_id: str,
        address: str,
        *,
        render_mode: str | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        check_render_mode(render_mode, env_id)
        if env_id not in WORLDS:
            raise BadRequest(f"AgentGym has no {env_id}; available: {', '.join(WORLDS)}")
        world = WORLDS[env_id]
        self.render_mode = render_mode
        self.observation_space = TextSpace()
        self.action_space = TextSpace()
        self.instruction = env_class(env_id).instruction
        """The instruction for the policy, given before the first observation."""
        self.tasks = TaskSet({SPLIT: [str(number) for number in range(world.tasks)]})
        """Its numbers, in one split."""
        self._world = world
        self._transport = HttpTransport(
            address.removeprefix(SCHEME), token=token, timeout_s=timeout_s, retries=0
        )
        self._id: int | None = None
        self._over: str | None = "no episode was started"
        self._task = ""
        self._turn = 0
        self._score = 0.0
        self._observation = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode. `options` may name `task`, a number from 0 as text."""
        super().reset(seed=seed)
        episode_seed = draw_episode_seed(self.np_random) if seed is None else seed
        task = choose_task(self.tasks, SPLIT, episode_seed, options)
        if self._id is None:
            self._id = int(self._post("/create", {})["id"])
        reply = self._post("/reset", {"id": self._id, "data_idx": int(task)})
        self._observation = "\n".join(self._text(reply, name) for name in self._world.first)
        self._task, self._turn, self._score, self._over = task, 0, 0.0, None
        return self._observation, {**self._info(False), "seed": int(episode_seed)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply one action; raises `EpisodeOver` outside an episode."""
        if not isinstance(action, str):
            raise BadRequest(f"an action is a str, got {type(action).__name__}")
        if self._over is not None:
            raise EpisodeOver(f"{self._over}; call reset() before step()")
        reply = self._post("/step", {"id": self._id, "action": self._spelled(action)})
        observation = self._text(reply, "observation")
        reward = self._number(reply, "reward") / self._world.reward_unit
        done = reply.get("done") is True
        self._turn += 1
        self._score += reward
        self._over = "the episode has ended" if done else None
        self._observation = observation
        return observation, reward, done, False, self._info(done)

    def available_actions(self) -> None:
        """AgentGym's server does not list them."""

    def render(self) -> Any:
        """The last observation."""
        return self._observation if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the session on the server."""
        number, self._id = self._id, None
        if number is not None:
            try:
                self._send("/close", {"id": number})
            except EnvironmentLost:
                # A server that is gone has no session to end.
                self._over = "the environment is closed"
        self._transport.close()

    def _spelled(self, action: str) -> str:
        ours, theirs = self._world.spelling
        text = clean_text(action)
        return theirs + text.removeprefix(ours) if ours and text.startswith(ours) else text

    def _info(self, done: bool) -> dict[str, Any]:
        least = self._world.solved_at
        solved = self._score > 0 if least is None else round(self._score, 6) >= least
        return {
            "task": self._task,
            "turn": self._turn,
            "success": done and solved,
            "score": self._score,
        }

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer's fields. Whatever fails here has lost the episode, or it never began."""
        self._over = "the last call failed"
        try:
            reply = self._send(path, body)
        except EnvironmentLost:
            self._id = None
            raise
        if not isinstance(reply, dict):
            raise self._unexpected(path, reply)
        if "error" in reply:
            # AgentGym reports every failure so, with status 200.
            text = str(reply["error"])[:_MAX_MESSAGE]
            if "is not valid" in text or "has been deleted" in text:
                self._id = None
                raise EnvironmentLost(f"{text} (at {self._transport.address})", "unknown_session")
            raise EnvironmentFault(f"{text} (at {self._transport.address})", "environment_error")
        return reply

    def _send(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = self._transport.send(Call(path, msgspec.json.encode(body)))
        if answer.status != 200:
            text = answer.body[:_MAX_MESSAGE].decode("utf-8", "replace")
            raise EnvironmentFault(
                f"{self._transport.address}{path} answered status {answer.status}: {text}",
                "environment_error",
            )
        try:
            return msgspec.json.decode(answer.body)
        except msgspec.DecodeError as error:
            raise self._unexpected(path, answer.body[:_MAX_MESSAGE]) from error

    def _text(self, reply: Mapping[str, Any], name: str) -> str:
        value = reply.get(name)
        if not isinstance(value, str):
            raise self._unexpected(name, value)
        return clean_text(value)

    def _number(self, reply: Mapping[str, Any], name: str) -> float:
        value = reply.get(name)
        if not isinstance(value, int | float):
            raise self._unexpected(name, value)
        return float(value)

    def _unexpected(self, what: str, value: Any) -> EnvironmentLost:
        text = repr(value)[:_MAX_MESSAGE]
        return EnvironmentLost(
            f"{self._transport.address} does not answer like an AgentGym server: {what} is "
            f"{text}; check the address",
            "protocol",
        )
