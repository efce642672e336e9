"""AsyncEnvClient: `EnvClient` for coroutines, which batches their concurrent calls.

Hundreds of episodes step at once. Calls of one kind that are made in the same pass of the event
loop are sent as a single request to each server.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from agentgym_env.client import protocol
from agentgym_env.client.opening import CallLimits, open_each, open_sessions
from agentgym_env.client.pool import Server, ServerPool
from agentgym_env.client.session_state import SessionState
from agentgym_env.client.transports import Answer, AsyncHttpTransport, AsyncTransport, Call
from agentgym_env.errors import AgentGymError, EnvironmentLost
from agentgym_env.server_token import resolve_token
from agentgym_env.text_env import TaskSet
from agentgym_env.wire import ActionsReply, EnvCard, ExpertReply, ResetReply, StepReply, TaskList

logger = logging.getLogger(__name__)

_COMPLETE_S = 5.0

R = TypeVar("R")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class AsyncEnvClient:
    """Opens and uses sessions on one or several servers of the same environment.

    The rules are `EnvClient`'s. Connections belong to an event loop: close the client before its
    loop ends; it may then be used in another. A session whose `open` is cancelled is closed in the
    background; `close` waits for that.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | AsyncTransport,
        *,
        token: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        remedy: str = "increase timeout_s",
    ) -> None:
        """`remedy` is what a user can do about a timeout, for its message."""
        self._limits = CallLimits(timeout_s, retries)

        def connect(address: str, token: str | None) -> AsyncTransport:
            token = resolve_token(token)
            return AsyncHttpTransport(
                address, token=token, timeout_s=timeout_s, retries=retries, remedy=remedy
            )

        self._pool: ServerPool[AsyncTransport] = ServerPool(servers, connect, token)
        self._card: EnvCard | None = None
        self._opening = _Gathering(self._open_batch, abandon=self._abandon)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._gatherings = _GatheringsOf(self)

    @property
    def server_count(self) -> int:
        """Servers that take new sessions now."""
        return len(self._pool.in_order())

    async def card(self) -> EnvCard:
        """The description of the environment; requested once."""
        if self._card is None:
            self._card = await self.run(protocol.card(self._pool))
        return self._card

    async def tasks(self, split: str) -> TaskList:
        """The tasks of one split."""
        return await self.run(protocol.tasks(self._pool, split))

    async def task_set(self) -> TaskSet:
        """Every split with its tasks."""
        return await self.run(protocol.task_set(self._pool))

    async def open(self) -> AsyncSession:
        """Open one session."""
        state = await self._opening.ask(None)
        return AsyncSession(state, self._gatherings[state.server])

    async def open_many(self, count: int) -> list[AsyncSession]:
        """Open `count` sessions, spread over the servers; raises if not all can be opened.

        Then none stays open. While servers restart, it tries again for at most `timeout_s`.
        """
        opening = _kept(self.run(open_sessions(self._pool, count, self._limits)), self._tasks)
        try:
            states = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._abandon_all)
            raise
        return [AsyncSession(state, self._gatherings[state.server]) for state in states]

    async def reset_many(
        self, items: Sequence[tuple[AsyncSession, int | None, str | None, str | None]]
    ) -> list[ResetReply | AgentGymError]:
        """Start an episode in each session, given as (session, seed, task, split).

        One request per server. A failed item is returned as its exception, which is not raised.
        """
        asked = [(session.state, seed, task, split) for session, seed, task, split in items]
        return await self.run(protocol.reset(asked))

    async def step_many(
        self, items: Sequence[tuple[AsyncSession, str]]
    ) -> list[StepReply | AgentGymError]:
        """Take the next turn of each session, given as (session, action).

        One request per server. A failed item is returned as its exception, which is not raised.
        """
        asked = [(session.state, action) for session, action in items]
        return await self.run(protocol.step(asked))

    async def close(self) -> None:
        """Close the connections. Sessions that are still open expire on the server.

        Calls that open or close sessions are completed first, for at most 5 seconds.
        """
        await self._complete()
        for server in (*self._pool.servers, *self._pool.left):
            await server.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def run(self, operation: protocol.Operation[R]) -> R:
        """Make an operation's calls until it has its result."""
        try:
            calls = next(operation)
            while True:
                try:
                    answers = await asyncio.gather(*map(_send, calls))
                except BaseException as error:
                    # It raises this again, perhaps after calls that clean up.
                    calls = operation.throw(error)
                else:
                    calls = operation.send(answers)
        except StopIteration as stop:
            result: R = stop.value
            return result

    async def _open_batch(self, items: list[None]) -> list[SessionState | AgentGymError]:
        return await self.run(open_each(self._pool, len(items), self._limits))

    def _abandon(self, state: SessionState) -> None:
        """Close a session that whoever opened it did not receive."""
        closing = self._gatherings[state.server].close.join(state)
        closing.add_done_callback(_ignore)

    def _abandon_all(self, opening: asyncio.Task[list[SessionState]]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            for state in opening.result():
                self._abandon(state)

    async def _complete(self) -> None:
        """Wait for the calls under way that open or close sessions."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + _COMPLETE_S
        while (left_s := ends - loop.time()) > 0:
            # What was asked or cancelled in this pass of the loop makes its calls in the next.
            await asyncio.sleep(0)
            gatherings: list[_Gathering[Any, Any]] = [
                self._opening,
                *(g.close for g in self._gatherings.values()),
            ]
            tasks = self._tasks.union(*(gathering.deliveries for gathering in gatherings))
            tasks = {task for task in tasks if task.get_loop() is loop}
            if not tasks:
                return
            await asyncio.wait(tasks, timeout=left_s)


class AsyncSession:
    """One session, made by `AsyncEnvClient.open`. Allows one call at a time."""

    def __init__(self, state: SessionState, gatherings: ServerGatherings) -> None:
        self.state = state
        self.gatherings = gatherings

    @property
    def address(self) -> str:
        """The session's server."""
        return self.state.address

    async def reset(
        self, *, seed: int | None = None, task: str | None = None, split: str | None = None
    ) -> ResetReply:
        """Start an episode; the same seed and task give the same episode."""
        return await self.gatherings.reset.ask((self.state, seed, task, split))

    async def step(self, action: str) -> StepReply:
        """Take the next turn."""
        return await self.gatherings.step.ask((self.state, action))

    async def expert_action(self) -> str | None:
        """The oracle's action for the next turn; None when it has none left."""
        return (await self.expert()).action

    async def expert(self) -> ExpertReply:
        """The oracle's action for the next turn, and its thought."""
        return await self.gatherings.expert.ask(self.state)

    async def available_actions(self) -> list[str] | None:
        """The available actions of the next turn; None if the environment does not list them."""
        return (await self.gatherings.actions.ask(self.state)).actions

    async def close(self) -> None:
        """Close the session; closing twice has no effect."""
        await self.gatherings.close.ask(self.state)


class ServerGatherings:
    """The batches that are collected for one server; servers do not wait for one another."""

    def __init__(self, client: AsyncEnvClient) -> None:
        async def reset(items: list[protocol.ResetItem]) -> list[ResetReply | AgentGymError]:
            return await client.run(protocol.reset(items))

        async def step(items: list[tuple[SessionState, str]]) -> list[StepReply | AgentGymError]:
            return await client.run(protocol.step(items))

        async def expert(items: list[SessionState]) -> list[ExpertReply | AgentGymError]:
            return await client.run(protocol.expert(items))

        async def actions(items: list[SessionState]) -> list[ActionsReply | AgentGymError]:
            return await client.run(protocol.actions(items))

        async def close(items: list[SessionState]) -> list[AgentGymError | None]:
            await client.run(protocol.close(items))
            return [None] * len(items)

        self.reset = _Gathering(reset)
        self.step = _Gathering(step)
        self.expert = _Gathering(expert)
        self.actions = _Gathering(actions)
        self.close = _Gathering(close, sends_cancelled=True)


class _GatheringsOf(dict[Server[AsyncTransport], ServerGatherings]):
    """The batches of each server, made when they are first needed."""

    def __init__(self, client: AsyncEnvClient) -> None:
        super().__init__()
        self._client = client

    def __missing__(self, server: Server[AsyncTransport]) -> ServerGatherings:
        made = self[server] = ServerGatherings(self._client)
        return made


class _Gathering(Generic[_Item, _Result]):
    """Collects the calls of one pass of the event loop and runs them as one batch.

    A batch is completed even if its callers are cancelled. `abandon` takes the results that nobody
    receives; `sends_cancelled` includes items whose callers were cancelled before the batch began.
    """

    def __init__(
        self,
        run: Callable[[list[_Item]], Awaitable[list[_Result | AgentGymError]]],
        *,
        abandon: Callable[[_Result], None] | None = None,
        sends_cancelled: bool = False,
    ) -> None:
        self.deliveries: set[asyncio.Task[None]] = set()
        """The batches under way."""
        self._run = run
        self._abandon = abandon
        self._sends_cancelled = sends_cancelled
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[tuple[_Item, asyncio.Future[_Result]]] = []

    async def ask(self, item: _Item) -> _Result:
        """Join the batch and wait for this item's result."""
        future = self.join(item)
        if self._abandon is None:
            return await future
        try:
            return await future
        except asyncio.CancelledError:
            # The result may have come in the same pass as the cancellation.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._abandon(future.result())
            raise

    def join(self, item: _Item) -> asyncio.Future[_Result]:
        """Join the batch; this item's result."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # What waited in a loop that has ended will never be asked.
            self._loop, self._waiting = loop, []
        if not self._waiting:
            loop.call_soon(self._flush, loop)
        future: asyncio.Future[_Result] = loop.create_future()
        self._waiting.append((item, future))
        return future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting, []
        if not self._sends_cancelled:
            batch = [(item, future) for item, future in batch if not future.done()]
        if batch:
            _kept(self._deliver(batch), self.deliveries)

    async def _deliver(self, batch: list[tuple[_Item, asyncio.Future[_Result]]]) -> None:
        try:
            results = await self._run([item for item, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    # Its own for each: tasks that raise the same one mix up their tracebacks.
                    future.set_exception(copy.copy(error))
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                if self._abandon is not None and not isinstance(result, AgentGymError):
                    self._abandon(result)
            elif isinstance(result, AgentGymError):
                future.set_exception(result)
            else:
                future.set_result(result)


def _kept(
    work: Coroutine[Any, Any, _Result], tasks: set[asyncio.Task[Any]]
) -> asyncio.Task[_Result]:
    """A task of the work, held in `tasks` until it is done; the loop holds tasks weakly."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def _ignore(future: asyncio.Future[Any]) -> None:
    """Take the exception of a call that nobody waits for."""
    if not future.cancelled() and future.exception() is not None:
        logger.debug("an abandoned session was not closed: %s", future.exception())


async def _send(call: tuple[Server[Any], Call]) -> Answer | EnvironmentLost:
    server, content = call
    if content.wait_s:
        await asyncio.sleep(content.wait_s)
    try:
        answer: Answer = await server.transport.send(content)
    except EnvironmentLost as lost:
        return lost
    return answer
