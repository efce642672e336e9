"""`--protocol agentgym`: the routes, field names and id types of AgentGym's own servers.

An unmodified AgentGym client drives it. What differs on purpose stands in docs/agentgym.md.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs

from agentgym_adapters import served
from agentgym_env.errors import BadRequest, UnknownTask
from agentgym_env.wire import JSON, CreateRequest, ResetRequest, SessionRequest, StepRequest
from agentgym_servers.host import routes
from agentgym_servers.host.app import Answerer, HeadedAnswer, HttpCall, Service, answer_call
from agentgym_servers.host.codec import Answer
from agentgym_servers.host.metrics import count
from agentgym_servers.host.protocols.single_calls import SingleCalls
from agentgym_servers.worlds.sciworld.tasks import original_task as sciworld_task
from agentgym_servers.worlds.textcraft.env import original_task as textcraft_task

REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, `int` or `str`, and what it is where it is left out."""

    name: str
    kind: type
    default: Any = REQUIRED
    nullable: bool = False


class InvalidMessage(Exception):
    """A call does not have the fields it must have; `detail` says where."""

    def __init__(self, kind: str, where: Sequence[str | int], message: str, given: Any) -> None:
        super().__init__(message)
        self.detail = [{"type": kind, "loc": list(where), "msg": message, "input": given}]


def read_body(body: bytes, content_type: str, fields: Sequence[Field]) -> dict[str, Any]:
    """The fields of a JSON body; raises `InvalidMessage`."""
    if not body:
        raise InvalidMessage("missing", ["body"], "Field required", None)
    media = content_type.partition(";")[0].strip().lower()
    try:
        # A body that is not declared to be JSON is a text to FastAPI. Bytes may be UTF-16 to
        # `json`, of which the values were not counted.
        text = body.decode()
        given = json.loads(text) if media in ("", "application/json") else text
    except (ValueError, RecursionError) as error:
        place = getattr(error, "pos", 0)
        raise InvalidMessage("json_invalid", ["body", place], "JSON decode error", {}) from error
    if not isinstance(given, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise InvalidMessage("model_attributes_type", ["body"], text, given)
    return {field.name: _read(field, given, "body") for field in fields}


def read_query(query: str, fields: Sequence[Field]) -> dict[str, Any]:
    """The fields of a query string; raises `InvalidMessage`."""
    try:
        listed = parse_qs(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        listed = {}
    given = {name: values[-1] for name, values in listed.items()}
    return {field.name: _read(field, given, "query") for field in fields}


def _read(field: Field, given: Mapping[str, Any], source: str) -> Any:
    where = [source, field.name]
    if field.name not in given:
        if field.default is REQUIRED:
            missing_from = dict(given) if source == "body" else None
            raise InvalidMessage("missing", where, "Field required", missing_from)
        return field.default
    value = given[field.name]
    if value is None and field.nullable:
        return None
    return _as_int(value, where) if field.kind is int else _as_str(value, where)


def _as_str(value: Any, where: Sequence[str]) -> str:
    if not isinstance(value, str):
        raise InvalidMessage("string_type", where, "Input should be a valid string", value)
    return value


def _as_int(value: Any, where: Sequence[str]) -> int:
    """As pydantic reads an int: "3", 3.0 and true are whole numbers."""
    whole = "Input should be a valid integer"
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        text = f"{whole}, got a number with a fractional part"
        raise InvalidMessage("int_from_float", where, text, value)
    if isinstance(value, str):
        digits = value.strip()
        if digits.lstrip("+-").isdecimal() and len(digits) <= 4300:
            return int(digits)
        text = f"{whole}, unable to parse string as an integer"
        raise InvalidMessage("int_parsing", where, text, value)
    raise InvalidMessage("int_type", where, whole, value)


ID: Final = Field("id", int)

IDS: Final = 2**53
"""Ids are drawn below this: every number is one in the JSON of any language."""


def _drawn_id() -> int:
    return secrets.randbelow(IDS)


_EPISODE_SEED = 0  # an index is one episode there, whenever it is asked for


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
        self._episodes: OrderedDict[int, Episode] = OrderedDict()
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
        self._episodes[number] = Episode(created.session)
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

    def find(self, number: int) -> Episode:
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


class Episode:
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

    def going_on(self, id: int) -> Episode:
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


def _api(env_id: str) -> type[OriginalApi]:
    if env_id not in _WORLDS:
        known = ", ".join(_WORLDS)
        raise BadRequest(f"AgentGym has no routes for {env_id}; --protocol agentgym serves {known}")
    return _WORLDS[env_id]
