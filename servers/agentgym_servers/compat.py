"""`--protocol agentgym`: the routes, field names and id types of AgentGym's own servers.

An unmodified AgentGym client drives it. What differs on purpose stands in docs/agentgym.md.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import UNSET

from agentgym_env.errors import BadRequest
from agentgym_env.wire import (
    JSON,
    CreateRequest,
    ResetRequest,
    SessionRequest,
    StepRequest,
    WireError,
)
from agentgym_servers import routes
from agentgym_servers.app import Answerer, HttpCall, Service, answer_call
from agentgym_servers.compat_fields import Field, Misfit, read_body, read_query
from agentgym_servers.desk import Answer
from agentgym_servers.metrics import count
from agentgym_servers.textcraft import original_task

_ID: Final = Field("id", int)
_EPISODE_SEED = 0  # an index is one episode there, whenever it is asked for


class Refused(Exception):
    """What an original server answers by status 200 and an error."""


class TextCraftApi:
    """The routes of AgentGym's TextCraft server."""

    def __init__(self, service: Service, ttl_s: float) -> None:
        self._service = service
        self._ttl_s = ttl_s
        self._next_id = 0
        # By last use: an id whose session ended idle is dropped with it.
        self._episodes: OrderedDict[int, _Episode] = OrderedDict()
        self._routes: dict[str, dict[str, tuple[Sequence[Field], _Handler]]] = {
            "/": {"GET": ((), self._greet)},
            "/create": {"POST": (_CREATE, self._create)},
            "/reset": {"POST": ((_ID, Field("data_idx", int, 0)), self._reset)},
            "/step": {"POST": ((_ID, Field("action", str)), self._step)},
            "/close": {"POST": ((_ID,), self._close)},
            "/observation": {"GET": ((_ID,), self._observation)},
            "/detail": {"GET": ((_ID,), self._detail)},
            "/commands": {"GET": ((_ID,), self._commands)},
            "/goal": {"GET": ((_ID,), self._goal)},
        }

    async def answer(self, call: HttpCall) -> Answer:
        """Answer one call. Health and metrics are ours: AgentGym has none."""
        if call.path in (routes.HEALTH.path, routes.METRICS.path):
            return await answer_call(self._service, call)
        count(self._service.desk.figures.requests, call.path if self._knows(call) else "unknown")
        if call.path not in self._routes:
            return _answer(404, {"detail": "Not Found"})
        methods = self._routes[call.path]
        if call.method not in methods:
            return _answer(405, {"detail": "Method Not Allowed"})
        fields, handle = methods[call.method]
        try:
            if call.method == "GET":
                given = read_query(call.query, fields)
            else:
                given = read_body(call.body, call.content_type, fields)
        except Misfit as misfit:
            return _answer(422, {"detail": misfit.detail})
        try:
            return _answer(200, await handle(**given))
        except Refused as refused:
            return _answer(200, {"error": str(refused)})

    def _knows(self, call: HttpCall) -> bool:
        return call.path in self._routes and call.method in self._routes[call.path]

    async def _greet(self) -> str:
        return "This is environment TextCraft."

    async def _create(self, commands: str | None, goal: str | None) -> dict[str, Any]:
        # The original takes commands and goal and never uses them.
        created = await self._ask(routes.SESSIONS, CreateRequest())
        number, self._next_id = self._next_id, self._next_id + 1
        self._forget_idle()
        self._episodes[number] = _Episode(created.session)
        return await self._reset(number, number)

    async def _reset(self, id: int, data_idx: int) -> dict[str, Any]:
        episode = self._find(id)
        request = ResetRequest(episode.session, _EPISODE_SEED, original_task(data_idx))
        reply = await self._ask(routes.RESET, request, id)
        episode.first = episode.observation = reply.observation
        episode.reward, episode.turn, episode.done = 0, 0, False
        return {"id": id, "observation": reply.observation, "done": False, "reward": 0}

    async def _step(self, id: int, action: str) -> dict[str, Any]:
        episode = self._find(id)
        if not episode.done:
            request = StepRequest(episode.session, episode.turn + 1, action)
            reply = await self._ask(routes.STEP, request, id)
            episode.turn += 1
            episode.observation, episode.done = reply.observation, reply.terminated
            # There a reward is 0 or 1, without a point.
            episode.reward = int(reply.reward)
        else:
            # An episode that has ended stays ended, and is not rewarded again.
            episode.reward = 0
        return {
            "observation": episode.observation, "reward": episode.reward, "done": episode.done,
        }  # fmt: skip

    async def _close(self, id: int) -> bool:
        episode = self._episodes.pop(id, None)
        if episode is None:
            return False
        reply = await self._ask(routes.CLOSE, SessionRequest(episode.session))
        return bool(reply.closed)

    async def _observation(self, id: int) -> str:
        return self._find(id).observation

    async def _detail(self, id: int) -> dict[str, Any]:
        episode = self._find(id)
        return {
            "observation": episode.observation, "done": episode.done, "reward": episode.reward,
            "deleted": False,
        }  # fmt: skip

    async def _commands(self, id: int) -> str:
        return self._find(id).first.rpartition("\n\nGoal: ")[0]

    async def _goal(self, id: int) -> str:
        return self._find(id).first.rpartition("\n\n")[2]

    def _find(self, number: int) -> _Episode:
        episode = self._episodes.get(number)
        if episode is None:
            raise Refused(f"The id {number} is not valid.")
        episode.used = time.monotonic()
        self._episodes.move_to_end(number)
        return episode

    def _forget_idle(self) -> None:
        """Drop ids that were not used for longer than their sessions may stand idle."""
        oldest_allowed = time.monotonic() - self._ttl_s
        while self._episodes and next(iter(self._episodes.values())).used < oldest_allowed:
            self._episodes.popitem(last=False)

    async def _ask(self, route: routes.Route, request: Any, number: int | None = None) -> Any:
        (reply,) = await self._service.ask(route.path, [request])
        error: WireError | Any = getattr(reply, "error", UNSET)
        count(self._service.desk.figures.items, route.path)
        if error is UNSET:
            return reply
        count(self._service.desk.figures.errors, error.code)
        if error.code == "unknown_session" and number is not None:
            self._episodes.pop(number, None)
            raise Refused(f"The id {number} is not valid.")
        raise Refused(error.message)


class _Episode:
    """Where an id's episode stands."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.used = time.monotonic()
        self.first = ""
        self.observation = ""
        self.reward = 0
        self.turn = 0
        self.done = False


_Handler = Callable[..., Awaitable[Any]]
_CREATE = (Field("commands", str, None, nullable=True), Field("goal", str, None, nullable=True))
_WORLDS: Final[dict[str, Callable[[Service, float], TextCraftApi]]] = {
    "agentgym/TextCraft-v0": TextCraftApi,
}


def original_protocol(service: Service, env_id: str, ttl_s: float) -> Answerer:
    """What speaks AgentGym's protocol for a world; raises `BadRequest` for one it did not have."""
    if env_id not in _WORLDS:
        known = ", ".join(_WORLDS)
        raise BadRequest(f"AgentGym has no routes for {env_id}; --protocol agentgym serves {known}")
    return _WORLDS[env_id](service, ttl_s).answer


def _answer(status: int, body: Any) -> Answer:
    # As FastAPI writes it: no spaces, and text as it is.
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return status, JSON, text.encode("utf-8", "replace")
