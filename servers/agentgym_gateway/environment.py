"""What an agent does with its episode's environment: describe it, step it, post a reward."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from agentgym_env.errors import BadRequest, EpisodeFailure, outcome_of
from agentgym_env.tools import BadArguments, ToolSpec
from agentgym_gateway.episode import GatewayEpisode

_MAX_REWARD: Final = 1e6


class Rejected(Exception):
    """A request that is answered with an error of OpenAI's form."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def describe(episode: GatewayEpisode) -> dict[str, Any]:
    """The episode as its agent sees it."""
    return {
        "instruction": episode.instruction,
        "observation": episode.observation,
        "task": episode.info.get("task"),
        "horizon": episode.horizon,
        "steps": episode.steps,
        "calls": episode.calls,
        "over": episode.over.is_set(),
    }


async def take_turn(episode: GatewayEpisode, values: Mapping[str, Any]) -> dict[str, Any]:
    """Take a turn of the environment; a turn that is repeated gets its stored answer."""
    action, turn = _action(values, episode.tools), values.get("turn")
    if episode.session is None:
        raise Rejected(409, "no_environment", "this episode has no environment")
    async with episode.stepping:
        if turn is not None and episode.last_step is not None and turn == episode.last_step[0]:
            return episode.last_step[1]
        if turn is not None and turn != episode.steps + 1:
            raise Rejected(409, "stale_turn", f"the next turn is {episode.steps + 1}")
        if episode.over.is_set():
            raise Rejected(409, "episode_over", "the episode is over")
        found = await _stepped(episode, action)
        episode.last_step = episode.steps, found
    return found


def reward(episode: GatewayEpisode, values: Mapping[str, Any]) -> dict[str, Any]:
    """Take the reward that an agent posts, which ends its episode."""
    given, success = values.get("reward"), values.get("success")
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    fits = is_number and abs(given or 0) <= _MAX_REWARD
    if not fits or success not in (None, True, False) or values.keys() - {"reward", "success"}:
        raise BadRequest('a reward is {"reward": NUMBER, "success": true or false}')
    if episode.reward is not None:
        raise Rejected(409, "rewarded", "the episode has its reward already")
    if episode.over.is_set():
        raise Rejected(409, "episode_over", "the episode is over, and has the outcome it has")
    episode.reward = float(given or 0)
    episode.success = bool(success) if success is not None else episode.reward > 0
    episode.end("success" if episode.success else "failure")
    return {"reward": episode.reward, "success": episode.success}


async def _stepped(episode: GatewayEpisode, action: str) -> dict[str, Any]:
    episode.step_began = time.monotonic()
    try:
        async with episode.environment():
            reply = await episode.session.step(action)
    except EpisodeFailure as error:
        episode.lost = f"{type(error).__name__}: {error}"
        episode.end(None)
        raise Rejected(502, "environment_lost", episode.lost) from error
    finally:
        episode.step_began = None
    episode.steps += 1
    # An agent that goes on did not end because of them, unless it read a part.
    episode.unheard = [answer for answer in episode.unheard if answer.was_sent]
    episode.info = {**episode.info, **reply.info}
    take_turn = {"action": action, "observation": reply.observation, "reward": reply.reward}
    steps = episode.early if episode.last is None else episode.last.steps
    steps.append({**take_turn, "info": dict(reply.info)})
    outcome = outcome_of(reply.terminated, reply.truncated, reply.info)
    if outcome is None and episode.horizon and episode.steps >= episode.horizon:
        outcome = "horizon"
    if outcome is not None:
        episode.end(outcome)
    ends = {"terminated": reply.terminated, "truncated": reply.truncated}
    return {
        **take_turn,
        **ends,
        "info": dict(reply.info),
        "turn": episode.steps,
        "over": episode.over.is_set(),
    }


def _action(values: Mapping[str, Any], tools: Mapping[str, ToolSpec]) -> str:
    """The action of a step; raises `BadRequest` with what is wrong."""
    if others := values.keys() - {"action", "tool", "arguments", "turn"}:
        raise BadRequest(f"a step has no {', '.join(sorted(others))[:80]}")
    action, name = values.get("action"), values.get("tool")
    if isinstance(action, str):
        return action
    arguments = values.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise BadRequest('a step is {"action": TEXT} or {"tool": NAME, "arguments": {...}}')
    if name not in tools:
        raise BadRequest(f"there is no tool {name[:80]!r}; there are {', '.join(tools)}")
    try:
        return tools[name].action(arguments)
    except BadArguments as error:
        raise BadRequest(str(error)) from error
