"""`--protocol agentgym`: the routes, field names and id types of AgentGym's own servers.

An unmodified AgentGym client drives it. What differs on purpose stands in docs/agentgym.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from agentgym_env.errors import BadRequest, UnknownTask
from agentgym_servers.host.app import Answerer, Service
from agentgym_servers.host.protocols.original_api import (
    OriginalApi,
    OriginalEpisode,
    Refused,
    Routes,
)
from agentgym_servers.host.protocols.original_fields import Field
from agentgym_servers.worlds.sciworld.tasks import original_task as sciworld_task
from agentgym_servers.worlds.textcraft.env import original_task as textcraft_task

ID: Final = Field("id", int)

IDS: Final = 2**53
"""Ids are drawn below this: every number is one in the JSON of any language."""

_INDEX: Final = Field("env_idx", int)


class SearchQAApi(OriginalApi):
    """SearchQA's, by its rule: a wrong answer may be tried again."""

    greeting = "ok"
    env_kwargs = {"legacy": True}  # noqa: RUF012

    def own_routes(self) -> Routes:
        """Its routes."""
        reset = (_INDEX, Field("id", int, None, nullable=True))
        return {
            "/create": {"POST": ((Field("id", int),), self._create)},
            "/reset": {"POST": (reset, self._reset)},
            "/step": {"POST": ((_INDEX, Field("action", str)), self._step)},
            "/close": {"POST": ((_INDEX,), self._close)},
            "/observation": {"GET": ((_INDEX,), self._observation)},
        }

    async def _create(self, id: int) -> int:
        return await self.open_episode(f"searchqa_{id}")

    async def _reset(self, env_idx: int, id: int | None) -> str:
        if id is None:
            raise Refused("Name the question to reset to by its number, as `id`.")
        return (await self.begin(env_idx, f"searchqa_{id}")).first

    async def _step(self, env_idx: int, action: str) -> dict[str, Any]:
        episode = self.find(env_idx)
        if episode.done:
            # An episode that has ended stays ended, and is not rewarded again.
            episode.reward = 0.0
        else:
            episode = await self.take_turn(env_idx, action)
        return {
            "observation": episode.observation, "reward": episode.reward, "done": episode.done,
            "info": None,
        }  # fmt: skip

    async def _close(self, env_idx: int) -> bool:
        return await self.close(env_idx)

    async def _observation(self, env_idx: int) -> str:
        return self.find(env_idx).first


class TextCraftApi(OriginalApi):
    """TextCraft's, in its own wording."""

    greeting = "This is environment TextCraft."
    _created = 0
    env_kwargs = {"legacy": True}  # noqa: RUF012

    def own_routes(self) -> Routes:
        """Its routes."""
        create = (
            Field("commands", str, None, nullable=True), Field("goal", str, None, nullable=True),
        )  # fmt: skip
        return {
            "/create": {"POST": (create, self._create)},
            "/reset": {"POST": ((ID, Field("data_idx", int, 0)), self._reset)},
            "/step": {"POST": ((ID, Field("action", str)), self._step)},
            "/close": {"POST": ((ID,), self.close)},
            "/observation": {"GET": ((ID,), self._observation)},
            "/detail": {"GET": ((ID,), self._detail)},
            "/commands": {"GET": ((ID,), self._commands)},
            "/goal": {"GET": ((ID,), self._goal)},
        }

    async def _create(self, commands: str | None, goal: str | None) -> dict[str, Any]:
        # The original takes commands and goal and never uses them. Its ids, which count from 0,
        # are the numbers of the first tasks.
        first, self._created = self._created, self._created + 1
        opened = await self.open_episode(textcraft_task(first))
        return self._begun(opened)

    async def _reset(self, id: int, data_idx: int) -> dict[str, Any]:
        await self.begin(id, textcraft_task(data_idx))
        return self._begun(id)

    def _begun(self, id: int) -> dict[str, Any]:
        observation = self.find(id).observation
        return {"id": id, "observation": observation, "done": False, "reward": 0}

    async def _step(self, id: int, action: str) -> dict[str, Any]:
        episode = self.find(id)
        if episode.done:
            # An episode that has ended stays ended, and is not rewarded again.
            episode.reward = 0.0
        else:
            episode = await self.take_turn(id, action)
        return {
            "observation": episode.observation, "reward": plain_number(episode.reward),
            "done": episode.done,
        }  # fmt: skip

    async def _observation(self, id: int) -> str:
        return self.find(id).observation

    async def _detail(self, id: int) -> dict[str, Any]:
        episode = self.find(id)
        return {
            "observation": episode.observation, "done": episode.done,
            "reward": plain_number(episode.reward), "deleted": False,
        }  # fmt: skip

    async def _commands(self, id: int) -> str:
        return self.find(id).first.rpartition("\n\nGoal: ")[0]

    async def _goal(self, id: int) -> str:
        return self.find(id).first.rpartition("\n\n")[2]


class ScoredApi(OriginalApi):
    """The common part of BabyAI and SciWorld: a task comes with `reset`, and ends once."""

    def going_on(self, id: int) -> OriginalEpisode:
        """The episode of an id with a current task; raises `Refused`."""
        episode = self.find(id)
        if not episode.begun:
            raise Refused(f"The environment {id} has no task; reset it.")
        if episode.done:
            raise Refused(f"The task with environment {id} has finished.")
        return episode

    async def create(self) -> dict[str, Any]:
        """Open an episode."""
        return {"id": await self.open_episode()}


class BabyAIApi(ScoredApi):
    """BabyAI's, in its own wording."""

    greeting = "This is environment BabyAI."
    env_kwargs = {"legacy": True}  # noqa: RUF012

    def own_routes(self) -> Routes:
        """Its routes."""
        return {
            "/create": {"POST": (None, self.create)},
            "/reset": {"POST": ((ID, Field("data_idx", int)), self._reset)},
            "/step": {"POST": ((ID, Field("action", str)), self._step)},
            "/close": {"POST": ((ID,), self.close)},
            "/observation": {"GET": ((ID,), self._observation)},
        }

    async def _reset(self, id: int, data_idx: int) -> dict[str, Any]:
        episode = await self.begin(id, f"babyai_{data_idx}")
        return {**_scored(episode), "deleted": False}

    async def _step(self, id: int, action: str) -> dict[str, Any]:
        self.going_on(id)
        return _scored(await self.take_turn(id, action))

    async def _observation(self, id: int) -> dict[str, Any]:
        episode = self.going_on(id)
        goal = episode.first.partition("\n")[0]
        seen = episode.observation if episode.turn == 0 else f"{goal}\n{episode.observation}"
        return {**_scored(episode), "observation": seen, "deleted": False}


class SciWorldApi(ScoredApi):
    """SciWorld's, but for the routes that show a person the inside of the simulator."""

    greeting = "This is environment ScienceWorld."

    def own_routes(self) -> Routes:
        """Its routes."""
        return {
            "/create": {"POST": (None, self.create)},
            "/reset": {"POST": ((ID, Field("data_idx", int)), self._reset)},
            "/step": {"POST": ((ID, Field("action", str)), self._step)},
            "/close": {"POST": ((ID,), self.close)},
            "/observation": {"GET": ((ID,), self._observation)},
            "/detail": {"GET": ((ID,), self._detail)},
            "/task_description": {"GET": ((ID,), self._describe_task)},
        }

    async def _reset(self, id: int, data_idx: int) -> dict[str, Any]:
        self.find(id)
        try:
            task = sciworld_task(data_idx)
        except UnknownTask as error:
            raise Refused(str(error)) from error
        episode = await self.begin(id, task)
        # What we give as one text is two there.
        episode.observation = episode.first.partition("\n")[2]
        return {**_described(episode), **_percent(episode), "deleted": False}

    async def _step(self, id: int, action: str) -> dict[str, Any]:
        self.going_on(id)
        return _percent(await self.take_turn(id, action))

    async def _observation(self, id: int) -> str:
        return self.going_on(id).observation

    async def _detail(self, id: int) -> dict[str, Any]:
        episode = self.find(id)
        return {"deleted": False, **_described(episode), **_percent(episode)}

    async def _describe_task(self, id: int) -> dict[str, Any]:
        return {"task_description": _described(self.find(id))["task_description"]}


_WORLDS: Final[dict[str, type[OriginalApi]]] = {
    "agentgym/BabyAI-v0": BabyAIApi,
    "agentgym/SciWorld-v0": SciWorldApi,
    "agentgym/Search-v0": SearchQAApi,
    "agentgym/TextCraft-v0": TextCraftApi,
}


def plain_number(value: float) -> float:
    """A number as Python's json would have it there: 0 and 1 without a point."""
    return int(value) if value == int(value) else value


def _drawn_id() -> int:
    return secrets.randbelow(IDS)


def original_protocol(
    service: Service,
    env_id: str,
    ttl_s: float,
    draw_id: Callable[[], int] = _drawn_id,
) -> Answerer:
    """Serves AgentGym's protocol for an environment; raises `BadRequest` for an unknown one."""
    return _api(env_id)(service, ttl_s, draw_id).answer


def original_kwargs(env_id: str) -> Mapping[str, Any]:
    """The environment's settings that give the texts of the original."""
    return _api(env_id).env_kwargs


def _described(episode: OriginalEpisode) -> dict[str, Any]:
    name, _, variation = episode.task.partition("/")
    return {
        "task_name": name, "var_num": int(variation or 0),
        "task_description": episode.first.partition("\n")[0],
    }  # fmt: skip


def _percent(episode: OriginalEpisode) -> dict[str, Any]:
    """Rewards and scores in percent."""
    return {
        "observation": episode.observation, "reward": round(100 * episode.reward),
        "score": round(100 * episode.score), "done": episode.done,
    }  # fmt: skip


def _scored(episode: OriginalEpisode) -> dict[str, Any]:
    return {
        "observation": episode.observation, "reward": plain_number(episode.reward),
        "score": plain_number(episode.score), "done": episode.done,
    }  # fmt: skip


def _api(env_id: str) -> type[OriginalApi]:
    if env_id not in _WORLDS:
        known = ", ".join(_WORLDS)
        raise BadRequest(f"AgentGym has no routes for {env_id}; --protocol agentgym serves {known}")
    return _WORLDS[env_id]
