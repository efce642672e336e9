"""What AgentGym's servers share: numbered episodes, and how calls are answered."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from agentgym_adapters import served
from agentgym_env.wire import JSON, CreateRequest, ResetRequest, SessionRequest, StepRequest
from agentgym_servers.host import routes
from agentgym_servers.host.app import HeadedAnswer, HttpCall, Service, answer_call
from agentgym_servers.host.codec import Answer
from agentgym_servers.host.metrics import count
from agentgym_servers.host.protocols.original_fields import (
    Field,
    InvalidMessage,
    read_body,
    read_query,
)
from agentgym_servers.host.protocols.single_calls import SingleCalls

_EPISODE_SEED = 0  # an index is one episode there, whenever it is asked for

Handler = Callable[..., Awaitable[Any]]

Routes = dict[str, dict[str, tuple[Sequence[Field] | None, Handler]]]
"""Path -> method -> the fields it takes (None: no body is read), and what answers."""


class Refused(Exception):
    """What an original server answers by status 200 and an error."""


class OriginalApi:
    """What the servers of all its worlds share: numbered episodes, and how calls are answered."""

    greeting: ClassVar[str]
    env_kwargs: ClassVar[Mapping[str, Any]] = {}
    """The environment's settings that give the texts of the original."""

    def __init__(self, service: Service, ttl_s: float, draw_id: Callable[[], int]) -> None:
        self._service = service
        self._draw_id = draw_id
        self._calls = SingleCalls(service)
        self._ttl_s = ttl_s
        # By last use: an id whose session ended idle is dropped with it.
        self._episodes: OrderedDict[int, OriginalEpisode] = OrderedDict()
        self._routes: Routes = {"/": {"GET": ((), self._greet)}, **self.own_routes()}

    def own_routes(self) -> Routes:
        """The world's own routes."""
        raise NotImplementedError

    async def answer(self, call: HttpCall) -> Answer | HeadedAnswer:
        """Answer one call. Health and metrics are ours: AgentGym has none."""
        if call.path in (routes.HEALTH.path, routes.METRICS.path):
            return await answer_call(self._service, call)
        count(self._service.codec.figures.requests, call.path if self._knows(call) else "unknown")
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
        except InvalidMessage as invalid:
            return _answer(422, {"detail": invalid.detail})
        try:
            reply = await handle(**given)
        except Refused as refused:
            return _answer(200, {"error": str(refused)})
        answer = _answer(200, reply)
        if call.path != "/create":
            return answer
        number = reply["id"] if isinstance(reply, dict) else reply
        undo = partial(self._close_unused, number, self._last_use(number))
        return HeadedAnswer(answer, if_unread=undo)

    def _knows(self, call: HttpCall) -> bool:
        return call.path in self._routes and call.method in self._routes[call.path]

    async def _greet(self) -> str:
        return self.greeting

    async def open_episode(self, task: str | None = None) -> int:
        """Open a session, and start an episode of a task in it; its number."""
        created = await self.ask(routes.SESSIONS, CreateRequest())
        self._forget_idle()
        while (number := self._draw_id()) in self._episodes:
            continue
        self._episodes[number] = OriginalEpisode(created.session)
        if task is not None:
            try:
                await self.begin(number, task)
            except Refused:
                await self.close(number)
                raise
        return number

    async def _close_unused(self, number: int, used: float | None) -> None:
        """End a session that was not used since."""
        if self._last_use(number) == used:
            await self.close(number)

    def _last_use(self, number: int) -> float | None:
        episode = self._episodes.get(number)
        return None if episode is None else episode.used

    async def begin(self, number: int, task: str) -> OriginalEpisode:
        """Start an episode."""
        episode = self.find(number)
        request = ResetRequest(episode.session, _EPISODE_SEED, task)
        reply = await self.ask(routes.RESET, request, number)
        episode.task = task
        episode.first = episode.observation = reply.observation
        episode.reward, episode.score, episode.turn = 0.0, 0.0, 0
        episode.begun, episode.done = True, False
        return episode

    async def take_turn(self, number: int, action: str) -> OriginalEpisode:
        """Take the next turn of an episode that goes on."""
        episode = self.find(number)
        request = StepRequest(episode.session, episode.turn + 1, action)
        reply = await self.ask(routes.STEP, request, number)
        episode.turn += 1
        episode.observation, episode.done = reply.observation, reply.terminated or reply.truncated
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

    def find(self, number: int) -> OriginalEpisode:
        """The episode of a number; raises `Refused`."""
        episode = self._episodes.get(number)
        if episode is None:
            raise Refused(f"The id {number} is not valid.")
        episode.used = time.monotonic()
        self._episodes.move_to_end(number)
        return episode

    def _forget_idle(self) -> None:
        """Drop the ids whose sessions have expired."""
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


class OriginalEpisode:
    """The state of an id's episode."""

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


def _answer(status: int, body: Any) -> Answer:
    # As FastAPI writes it: no spaces, and text as it is.
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return status, JSON, text.encode("utf-8", "replace")
