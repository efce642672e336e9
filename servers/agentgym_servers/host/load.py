"""Generates load on an environment, in this process or over HTTP, and measures its steps."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
from msgspec import UNSET, Struct, UnsetType

from agentgym_env.client.transports import checked_address
from agentgym_env.errors import EnvironmentLost
from agentgym_env.text_env import TextEnv
from agentgym_env.wire import CreateReply, ResetRequest, StepRequest, WireError, decode, encode

MAX_TURNS = 20

_PLAYS = 256

_RECORD_S = 15.0


@dataclass(frozen=True, slots=True)
class Play:
    """One episode: how to start it, and what to do."""

    seed: int
    task: str
    actions: tuple[str, ...]


@dataclass(slots=True)
class Load:
    """What a measurement found."""

    steps: int = 0
    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    """Of each call that stepped: one session, or a batch of them."""

    @property
    def steps_per_s(self) -> float:
        """Steps a second; resets take their part of the time."""
        return self.steps / self.seconds

    def latency_ms(self, percent: float) -> float:
        """The latency that `percent` of the calls did not exceed."""
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class LoadActor(Protocol):
    """Plays one session over its own connection."""

    async def reset(self, play: Play) -> None:
        """Start an episode."""
        ...

    async def step(self, action: str) -> bool:
        """Take a turn; whether the episode ended."""
        ...


class Connection(asyncio.Protocol):
    """A kept-alive HTTP connection that carries one call at a time."""

    def __init__(self, token: str | None = None) -> None:
        self._authorization = f"Authorization: Bearer {token}\r\n".encode() if token else b""
        self._answer: asyncio.Future[bytes] | None = None
        self._body: list[bytes] = []

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of the answer; raises `EnvironmentLost` unless its status is 200."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"%sContent-Length: %d\r\n\r\n%s"
            % (path.encode(), self._authorization, len(body), body)
        )
        return await self._answer

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection stands."""
        self._transport = cast("asyncio.WriteTransport", transport)
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the server hung up."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(EnvironmentLost(f"the server hung up: {error}"))

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """httptools: a part of the body came."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """httptools: the answer is whole."""
        body, self._body = b"".join(self._body), []
        status = self._parser.get_status_code()
        if self._answer is None or self._answer.done():
            return
        if status == 200:
            self._answer.set_result(body)
        else:
            self._answer.set_exception(EnvironmentLost(f"status {status}: {body[:300]!r}"))


class _StepEnd(Struct):
    """What the generator reads of a step's reply."""

    terminated: bool = False
    truncated: bool = False
    error: WireError | UnsetType = UNSET

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


_STEP_ENDS = list[_StepEnd]


def record_plays(env: TextEnv, count: int = _PLAYS) -> list[Play]:
    """Episodes of at most 20 random actions among the available ones, or of the expert's.

    As many as `count`, or as a slow world has played in 15 s.
    """
    draw = random.Random("agentgym bench")
    plays: list[Play] = []
    until = time.perf_counter() + _RECORD_S
    for seed in range(count):
        if plays and time.perf_counter() > until:
            break
        _, info = env.reset(seed=seed)
        actions: list[str] = []
        while len(actions) < MAX_TURNS:
            action = _some_action(env, draw)
            if action is None:
                break
            actions.append(action)
            if any(env.step(action)[2:4]):
                break
        # An expert may have nothing to say of a task.
        if actions:
            plays.append(Play(seed, info["task"], tuple(actions)))
    return plays


def in_process_load(env: TextEnv, plays: Sequence[Play], seconds: float) -> Load:
    """The plays in this process, on one core, with nothing in between."""
    load, began = Load(), time.perf_counter()
    for play in cycle(plays):
        if time.perf_counter() - began >= seconds:
            break
        env.reset(seed=play.seed, options={"task": play.task})
        for action in play.actions:
            before = time.perf_counter()
            env.step(action)
            load.latencies_s.append(time.perf_counter() - before)
        load.steps += len(play.actions)
    load.seconds = time.perf_counter() - began
    return load


async def single_load(actors: Sequence[LoadActor], plays: Sequence[Play], seconds: float) -> Load:
    """Every actor at its own pace, one call a step."""
    load, began = Load(), time.perf_counter()

    async def one(actor: LoadActor, mine: Iterator[Play]) -> None:
        for play in mine:
            await actor.reset(play)
            for action in play.actions:
                before = time.perf_counter()
                ended = await actor.step(action)
                now = time.perf_counter()
                load.latencies_s.append(now - before)
                load.steps += 1
                if now - began >= seconds:
                    return
                if ended:
                    break

    await asyncio.gather(*(one(p, islice(cycle(plays), i, None)) for i, p in enumerate(actors)))
    load.seconds = time.perf_counter() - began
    return load


async def batched_load(
    batches: Sequence[tuple[Connection, Sequence[str]]], plays: Sequence[Play], seconds: float
) -> Load:
    """The sessions of a batch in lockstep, one call for a turn of each; batches side by side."""
    load, began = Load(), time.perf_counter()
    await asyncio.gather(*(_lockstep(load, began + seconds, *b, plays) for b in batches))
    load.seconds = time.perf_counter() - began
    return load


class SessionPlayer:
    """A session of one of our servers."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._episode = 0
        self._turn = 0

    async def reset(self, play: Play) -> None:
        """Start an episode."""
        self._episode += 1
        request = [ResetRequest(self._name, play.seed, play.task, episode=self._episode)]
        await self._connection.post("/v1/reset", encode(request))
        self._turn = 0

    async def step(self, action: str) -> bool:
        """Take a turn; whether the episode ended."""
        self._turn += 1
        request = [StepRequest(self._name, self._turn, action, self._episode)]
        (reply,) = decode(await self._connection.post("/v1/step", encode(request)), _STEP_ENDS)
        _check(reply)
        return bool(reply.ended)


async def open_sessions(connection: Connection, count: int) -> list[str]:
    """The names of fresh sessions."""
    answer = await connection.post("/v1/sessions", b"[" + b",".join([b"{}"] * count) + b"]")
    replies = decode(answer, list[CreateReply])
    for reply in replies:
        if reply.error is not UNSET:
            raise EnvironmentLost(reply.error.message, reply.error.code)
    return [reply.session for reply in replies]


async def close_sessions(connection: Connection, names: Sequence[str]) -> None:
    """End sessions."""
    await connection.post("/v1/close", encode([{"session": name} for name in names]))


@asynccontextmanager
async def connected(
    address: str, count: int, token: str | None = None
) -> AsyncIterator[list[Connection]]:
    """Connections to a server, closed in the end."""
    parts = urlsplit(checked_address(address))
    host, port = parts.hostname or "", parts.port or 80
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []
    try:
        for _ in range(count):
            connections.append(
                (await loop.create_connection(lambda: Connection(token), host, port))[1]
            )
        yield connections
    finally:
        for connection in connections:
            connection.close()
        await asyncio.sleep(0)  # a transport is closed in the loop's next pass


async def _lockstep(
    load: Load, until: float, connection: Connection, names: Sequence[str], plays: Sequence[Play]
) -> None:
    mine = [islice(cycle(plays), i, None) for i in range(len(names))]
    current: list[Play] = [Play(0, "", ())] * len(names)
    turns = [0] * len(names)
    episodes = [0] * len(names)
    while time.perf_counter() < until:
        ended = [i for i, play in enumerate(current) if turns[i] == len(play.actions)]
        if ended:
            for i in ended:
                current[i], turns[i], episodes[i] = next(mine[i]), 0, episodes[i] + 1
            resets = [
                ResetRequest(names[i], current[i].seed, current[i].task, episode=episodes[i])
                for i in ended
            ]
            await connection.post("/v1/reset", encode(resets))
        steps = [
            StepRequest(name, turn + 1, play.actions[turn], episode)
            for name, turn, play, episode in zip(names, turns, current, episodes, strict=True)
        ]
        before = time.perf_counter()
        answer = await connection.post("/v1/step", encode(steps))
        load.latencies_s.append(time.perf_counter() - before)
        replies = decode(answer, list[_StepEnd])
        for i, reply in enumerate(replies):
            _check(reply)
            turns[i] = len(current[i].actions) if reply.ended else turns[i] + 1
        load.steps += len(names)


def _check(reply: _StepEnd) -> None:
    if reply.error is not UNSET:
        raise EnvironmentLost(reply.error.message, reply.error.code)


def _some_action(env: TextEnv, draw: random.Random) -> str | None:
    available = env.available_actions()
    if available:
        return available[int(draw.random() * len(available))]
    if type(env).expert is not TextEnv.expert:
        return env.expert_action()
    return env.action_space.sample()
