"""An episode of the gateway: its state while an agent plays it, and what it leaves behind."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agentgym_env.errors import Outcome
from agentgym_env.tools import ToolSpec
from agentgym_env.trajectory import Tokens, Turn
from agentgym_gateway.messages import Reply
from agentgym_gateway.recorder import EpisodeRecorder, Prepared, RecordedCall
from agentgym_train.engines.base import Generation


@dataclass(slots=True, eq=False, weakref_slot=True)
class GatewayEpisode:
    """An episode that an agent plays."""

    key: str
    """The API key that the agent uses."""
    session: Any
    """The environment's session; None without one."""
    observation: str
    instruction: str
    info: Mapping[str, Any]
    horizon: int
    """Maximum steps in the environment; 0 sets no limit."""
    tools: Mapping[str, ToolSpec]
    """The environment's tools by name."""
    recorder: EpisodeRecorder
    draws: random.Random
    slots: asyncio.Semaphore | None
    policy: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """Entered for each sampled call: it limits, pauses and times them."""
    environment: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """Entered for each step of the environment."""
    step_began: float | None = None
    """When the step began that is running now."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the environment, a budget or a posted reward has ended the episode."""
    outcome: Outcome | None = None
    lost: str = ""
    """Why the environment was lost."""
    engine_lost: str = ""
    """Why the last call failed, if the engine was lost."""
    calls: int = 0
    """Calls in the record."""
    tokens: int = 0
    """Sampled tokens in the record."""
    spent_calls: int = 0
    """Calls that count against the budget: running ones too, and replies that nobody received."""
    spent_tokens: int = 0
    """Their tokens; a running call counts with its maximum."""
    reserved: int = 0
    """Calls that run now."""
    steps: int = 0
    asked: bool = False
    """Whether a request was accepted: its reply was sampled, or was still being sampled."""
    undelivered: int = 0
    """Replies that the agent did not receive."""
    unheard: list[SampledReply] = field(default_factory=list)
    """Those after which the agent received no other reply and took no step."""
    early: list[dict[str, Any]] = field(default_factory=list)
    """Steps before the first call."""
    sampled: list[RecordedCall] = field(default_factory=list)
    """The calls in the record, in the order in which they were sampled."""
    reward: float | None = None
    """The posted reward."""
    success: bool | None = None
    """The posted success."""
    pending: dict[bytes, Pending] = field(default_factory=dict)
    """The latest reply to each request, by the request's digest."""
    running: set[asyncio.Task[SampledReply]] = field(default_factory=set)
    responses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Messages up to each response of the responses API."""
    stepping: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_step: tuple[int, dict[str, Any]] | None = None

    @property
    def last(self) -> RecordedCall | None:
        """The latest call, to which steps and a posted reward belong."""
        return self.sampled[-1] if self.sampled else None

    @property
    def step_s(self) -> float:
        """How long the step that is running now has taken."""
        return 0.0 if self.step_began is None else time.monotonic() - self.step_began

    def reserve(self, tokens: int) -> None:
        """Count a call that begins, with its maximum of tokens."""
        self.reserved += 1
        self.spent_calls += 1
        self.spent_tokens += tokens

    def release(self, tokens: int, sampled: int | None) -> None:
        """Count what it sampled instead; None takes a failed call back."""
        self.reserved -= 1
        self.spent_calls -= sampled is None
        self.spent_tokens += (sampled or 0) - tokens

    def end(self, outcome: Outcome | None) -> None:
        """End the episode; the first outcome stays."""
        if not self.over.is_set():
            self.outcome = outcome
            self.over.set()


@dataclass(slots=True)
class Pending:
    """A reply that is being sampled, or was."""

    task: asyncio.Task[SampledReply]
    waiting: int = 0
    """Requests that it is for: the first one and its retries."""


@dataclass(slots=True)
class SampledReply:
    """A sampled reply, and its place in the record while the agent has it."""

    reply: Reply
    sampled: Sampled | None
    """What it takes to record the reply; None once the agent has it."""
    call: RecordedCall | None = None
    was_sent: bool = False
    """Whether the agent may have seen some of it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was sampled for a request."""

    prepared: Prepared
    generation: Generation
    text: str


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """What an episode leaves behind."""

    rows: list[Tokens]
    turns: list[Turn]
    """One for each call, in the order of the rows and of the calls in them."""
    outcome: Outcome | None
    """None if nothing has ended the episode."""
    success: bool
    score: float
    calls: int
    tokens: int
    """Sampled tokens."""
    lost: str
    engine_lost: str
    asked: bool
    """Whether a request was accepted."""


def recorded_turns(calls: Sequence[RecordedCall], episode: GatewayEpisode) -> list[Turn]:
    """A turn for each call: its text, and the steps in the environment that followed it."""
    turns = []
    first = calls[0] if calls else None
    for call in calls:
        steps = [*episode.early, *call.steps] if call is first else call.steps
        turns.append(_turn(call.text, steps, call.cut))
    if not calls and episode.early:
        turns = [_turn("", episode.early)]
    if turns and episode.reward is not None:
        latest = [number for number, call in enumerate(calls) if call is episode.last]
        index = latest[0] if latest else -1
        last = turns[index]
        turns[index] = msgspec.structs.replace(last, reward=last.reward + episode.reward)
    return turns


def _turn(text: str, steps: Sequence[Mapping[str, Any]], cut: bool = False) -> Turn:
    info = dict(steps[-1]["info"]) if steps else {}
    if len(steps) > 1:
        names = ("action", "observation", "reward")
        info["calls"] = [{name: step[name] for name in names} for step in steps]
    return Turn(
        response=text,
        action="\n".join(step["action"] for step in steps),
        observation="\n\n".join(step["observation"] for step in steps),
        reward=sum(step["reward"] for step in steps),
        info=info,
        cut=cut,
    )
