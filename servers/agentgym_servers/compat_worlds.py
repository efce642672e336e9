"""AgentGym's own routes of each world that it had, by name and by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentgym_env.errors import BadRequest, UnknownTask
from agentgym_servers._sciworld_tasks import original_task as sciworld_task
from agentgym_servers.app import Answerer, Service
from agentgym_servers.compat import ID, Episode, OriginalApi, Refused, Routes, plain_number
from agentgym_servers.compat_fields import Field
from agentgym_servers.compat_search import SearchQAApi
from agentgym_servers.textcraft import original_task as textcraft_task


class TextCraftApi(OriginalApi):
    """TextCraft's."""

    greeting = "This is environment TextCraft."

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
        # The original takes commands and goal and never uses them.
        opened = await self.open_episode()
        return await self._reset(opened, opened)

    async def _reset(self, id: int, data_idx: int) -> dict[str, Any]:
        episode = await self.begin(id, textcraft_task(data_idx))
        return {"id": id, "observation": episode.observation, "done": False, "reward": 0}

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
    """What BabyAI's and SciWorld's have in common: a task comes with `reset`, and ends once."""

    def going_on(self, id: int) -> Episode:
        """The episode of an id that has a task to go on with; raises `Refused`."""
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


def _described(episode: Episode) -> dict[str, Any]:
    name, _, variation = episode.task.partition("/")
    return {
        "task_name": name, "var_num": int(variation or 0),
        "task_description": episode.first.partition("\n")[0],
    }  # fmt: skip


def _percent(episode: Episode) -> dict[str, Any]:
    """Rewards and scores in percent."""
    return {
        "observation": episode.observation, "reward": round(100 * episode.reward),
        "score": round(100 * episode.score), "done": episode.done,
    }  # fmt: skip


def _scored(episode: Episode) -> dict[str, Any]:
    return {
        "observation": episode.observation, "reward": plain_number(episode.reward),
        "score": plain_number(episode.score), "done": episode.done,
    }  # fmt: skip


_WORLDS: Final[dict[str, type[OriginalApi]]] = {
    "agentgym/BabyAI-v0": BabyAIApi,
    "agentgym/SciWorld-v0": SciWorldApi,
    "agentgym/Search-v0": SearchQAApi,
    "agentgym/TextCraft-v0": TextCraftApi,
}


def original_protocol(service: Service, env_id: str, ttl_s: float) -> Answerer:
    """What speaks AgentGym's protocol for a world; raises `BadRequest` for one it did not have."""
    return _api(env_id)(service, ttl_s).answer


def original_kwargs(env_id: str) -> Mapping[str, Any]:
    """How the world is made, so that it speaks as the original does."""
    return _api(env_id).env_kwargs


def _api(env_id: str) -> type[OriginalApi]:
    if env_id not in _WORLDS:
        known = ", ".join(_WORLDS)
        raise BadRequest(f"AgentGym has no routes for {env_id}; --protocol agentgym serves {known}")
    return _WORLDS[env_id]
