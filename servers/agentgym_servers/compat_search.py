"""AgentGym's own routes of SearchQA."""

from __future__ import annotations

from typing import Any, Final

from agentgym_servers.compat import Episode, OriginalApi, Refused, Routes
from agentgym_servers.compat_fields import Field

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
        opened = await self.open_episode()
        try:
            await self._begin(opened, id)
        except Refused:
            await self.close(opened)
            raise
        return opened

    async def _reset(self, env_idx: int, id: int | None) -> str:
        if id is None:
            raise Refused("Name the question to reset to by its number, as `id`.")
        return (await self._begin(env_idx, id)).first

    async def _begin(self, env_idx: int, id: int) -> Episode:
        return await self.begin(env_idx, f"searchqa_{id}")

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
