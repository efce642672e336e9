"""`--protocol agentgym`: the routes, field names and id types of AgentGym's own servers.

An unmodified AgentGym client drives it. What differs on purpose stands in docs/agentgym.md.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from agentgym_adapters import served
from agentgym_env.wire import JSON, CreateRequest, ResetRequest, SessionRequest, StepRequest
from agentgym_servers import routes
from agentgym_servers.app import HttpCall, Service, answer_call
from agentgym_servers.compat_fields import Field, Misfit, read_body, read_query
from agentgym_servers.desk import Answer
from agentgym_servers.metrics import count
from agentgym_servers.single_calls import SingleCalls

ID: Final = Field("id", int)
_EPISODE_SEED = 0  # an index is one episode there, whenever it is asked for


class Refused(Exception):
    """What an original server answers by status 200 and an error."""


class OriginalApi:
    """What the servers of all its worlds share: numbered episodes, and how calls are answered."""

    greeting: ClassVar[str]
    env_kwargs: ClassVar[Mapping[str, Any]] = {}
    """How the world is made, so that it speaks as the original does."""

    def __init__(self, service: Service, ttl_s: float) -> None:
        self._service = service
        self._calls = SingleCalls(service)
        self._ttl_s = ttl_s
        self._next_id = 0
        # By last use: an id whose session ended idle is dropped with it.
        self._episodes: OrderedDict[int, Episode] = OrderedDict()
        self._routes: Routes = {"/": {"GET": ((), self._greet)}, **self.own_routes()}

    def own_routes(self) -> Routes:
        """The world's own routes."""
        raise NotImplementedError

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
            given: dict[str, Any] = {}
            if fields is not None and call.method == "GET":
                given = read_query(call.query, fields)
            elif fields is not None:
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
        return self.greeting

    async def open_episode(self) -> int:
        """Open a session; its number."""
        created = await self.ask(routes.SESSIONS, CreateRequest())
        number, self._next_id = self._next_id, self._next_id + 1
        self._forget_idle()
        self._episodes[number] = Episode(created.session)
        return number

    async def begin(self, number: int, task: str) -> Episode:
        """Start an episode."""
        episode = self.find(number)
        request = ResetRequest(episode.session, _EPISODE_SEED, task)
        reply = await self.ask(routes.RESET, request, number)
        episode.task = task
        episode.first = episode.observation = reply.observation
        episode.reward, episode.score, episode.turn = 0.0, 0.0, 0
        episode.begun, episode.done = True, False
        return episode

    async def take_turn(self, number: int, action: str) -> Episode:
        """Take the next turn of an episode that goes on."""
        episode = self.find(number)
        request = StepRequest(episode.session, episode.turn + 1, action)
        reply = await self.ask(routes.STEP, request, number)
        episode.turn += 1
        episode.observation, episode.done = reply.observation, reply.terminated
        episode.reward = reply.reward
        episode.score += reply.reward
        return episode

    async def close(self, id: int) -> bool:
        """End a session; whether there was one."""
        episode = self._episodes.pop(id, None)
        if episode is None:
            return False
        reply = await self.ask(routes.CLOSE, SessionRequest(episode.session))
        return bool(reply.closed)

    def find(self, number: int) -> Episode:
        """The episode of a number; raises `Refused`."""
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

    async def ask(self, route: routes.Route, request: Any, number: int | None = None) -> Any:
        """The reply to one request; raises `Refused`."""
        try:
            return await self._calls.ask(route, request)
        except served.Refused as refused:
            if refused.code == "unknown_session" and number is not None:
                self._episodes.pop(number, None)
                raise Refused(f"The id {number} is not valid.") from refused
            raise Refused(refused.message) from refused


class Episode:
    """Where an id's episode stands."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.used = time.monotonic()
        self.task = ""
        self.first = ""
        self.observation = ""
        self.reward = 0.0
        self.score = 0.0
        self.turn = 0
        self.begun = False
        self.done = False


Handler = Callable[..., Awaitable[Any]]
Routes = dict[str, dict[str, tuple[Sequence[Field] | None, Handler]]]
"""Path -> method -> the fields it takes (None: no body is read), and what answers."""


def plain_number(value: float) -> float:
    """A number as Python's json would have it there: 0 and 1 without a point."""
    return int(value) if value == int(value) else value


def _answer(status: int, body: Any) -> Answer:
    # As FastAPI writes it: no spaces, and text as it is.
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return status, JSON, text.encode("utf-8", "replace")
