"""EnvClient: sessions on environment servers, for synchronous code.

```python
with EnvClient("http://127.0.0.1:8000") as client:
    session = client.open()
    first = session.reset(task="bookshelf", seed=0)
    reply = session.step("get 6 oak logs")
```
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from agentgym_env.client import protocol
from agentgym_env.client.opening import CallLimits, open_sessions
from agentgym_env.client.pool import Server, ServerPool
from agentgym_env.client.session_state import SessionState
from agentgym_env.client.transports import Answer, Call, HttpTransport, Transport
from agentgym_env.errors import AgentGymError, EnvironmentLost
from agentgym_env.server_token import resolve_token
from agentgym_env.text_env import TaskSet
from agentgym_env.wire import EnvCard, ResetReply, StepReply, TaskList

_MAX_THREADS = 64
"""Maximum servers that are called at the same time."""
R = TypeVar("R")
_Reply = TypeVar("_Reply")


class EnvClient(AbstractContextManager["EnvClient"]):
    """Opens and uses sessions on one or several servers of the same environment.

    `servers` is an address, several, or that of a fleet (`ray://NAME`). New sessions go to the
    server with the fewest; a server that gave no answer is left alone for a few seconds, and the
    sessions on it are lost. `timeout_s` bounds each call. `token` is sent to
    every address; None uses the environment variable `AGENTGYM_TOKEN`, and "" sends no token.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | Transport,
        *,
        token: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
    ) -> None:
        self._limits = CallLimits(timeout_s, retries)

        def connect(address: str, token: str | None) -> Transport:
            token = resolve_token(token)
            return HttpTransport(address, token=token, timeout_s=timeout_s, retries=retries)

        self._pool: ServerPool[Transport] = ServerPool(servers, connect, token)
        self._threads: ThreadPoolExecutor | None = None
        self._card: EnvCard | None = None

    def card(self) -> EnvCard:
        """The description of the environment; requested once."""
        if self._card is None:
            self._card = self._run(protocol.card(self._pool))
        return self._card

    def tasks(self, split: str) -> TaskList:
        """The tasks of one split."""
        return self._run(protocol.tasks(self._pool, split))

    def task_set(self) -> TaskSet:
        """Every split with its tasks."""
        return self._run(protocol.task_set(self._pool))

    def open(self) -> Session:
        """Open one session."""
        return self.open_many(1)[0]

    def open_many(self, count: int) -> list[Session]:
        """Open `count` sessions, spread over the servers; raises if not all can be opened.

        Then none stays open. While servers restart, it tries again for at most `timeout_s`.
        """
        states = self._run(open_sessions(self._pool, count, self._limits))
        return [Session(self, state) for state in states]

    def reset_many(
        self, items: Sequence[tuple[Session, int | None, str | None, str | None]]
    ) -> list[ResetReply | AgentGymError]:
        """Start an episode in each session, given as (session, seed, task, split).

        One request per server. A failed item is returned as its exception, which is not raised.
        """
        asked = [(session.state, seed, task, split) for session, seed, task, split in items]
        return self._run(protocol.reset(asked))

    def step_many(self, items: Sequence[tuple[Session, str]]) -> list[StepReply | AgentGymError]:
        """Take the next turn of each session, given as (session, action).

        One request per server. A failed item is returned as its exception, which is not raised.
        """
        return self._run(protocol.step([(session.state, action) for session, action in items]))

    def expert_actions(self, sessions: Sequence[Session]) -> list[str | AgentGymError | None]:
        """The oracle's action for each session's next turn, or the exception of its item."""
        replies = self._run(protocol.expert([session.state for session in sessions]))
        return [r if isinstance(r, AgentGymError) else r.action for r in replies]

    def available_actions(
        self, sessions: Sequence[Session]
    ) -> list[list[str] | AgentGymError | None]:
        """The available actions of each session's next turn, or the exception of its item."""
        replies = self._run(protocol.actions([session.state for session in sessions]))
        return [r if isinstance(r, AgentGymError) else r.actions for r in replies]

    def follow(self) -> None:
        """Learn of servers that came or are leaving, where `servers` is a fleet."""
        self._pool.follow()

    def close_many(self, sessions: Sequence[Session]) -> None:
        """Close sessions; those that have ended already are ignored."""
        self._run(protocol.close([session.state for session in sessions]))

    def close(self) -> None:
        """Close the connections. Sessions that are still open expire on the server."""
        for server in (*self._pool.servers, *self._pool.left):
            server.transport.close()
        if self._threads is not None:
            self._threads.shutdown()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, operation: protocol.Operation[R]) -> R:
        try:
            calls = next(operation)
            while True:
                try:
                    answers = self._send_all(calls)
                except BaseException as error:
                    # It raises this again, perhaps after calls that clean up.
                    calls = operation.throw(error)
                else:
                    calls = operation.send(answers)
        except StopIteration as stop:
            result: R = stop.value
            return result

    def _send_all(
        self, calls: list[tuple[Server[Transport], Call]]
    ) -> list[Answer | EnvironmentLost]:
        if len(calls) == 1:
            return [_send(call) for call in calls]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_MAX_THREADS)
        return list(self._threads.map(_send, calls))


class Session:
    """One session, made by `EnvClient.open`. Allows one call at a time."""

    def __init__(self, client: EnvClient, state: SessionState) -> None:
        self._client = client
        self.state = state

    @property
    def address(self) -> str:
        """The session's server."""
        return self.state.address

    @property
    def is_to_move(self) -> bool:
        """Whether its server is being drained: the next episode should have another session."""
        self._client.follow()
        return self.state.server.is_leaving

    def reset(
        self, *, seed: int | None = None, task: str | None = None, split: str | None = None
    ) -> ResetReply:
        """Start an episode; the same seed and task give the same episode."""
        return only(self._client.reset_many([(self, seed, task, split)]))

    def step(self, action: str) -> StepReply:
        """Take the next turn."""
        return only(self._client.step_many([(self, action)]))

    def expert_action(self) -> str | None:
        """The oracle's action for the next turn; None when it has none left."""
        return only(self._client.expert_actions([self]))

    def available_actions(self) -> list[str] | None:
        """The available actions of the next turn; None if the environment does not list them."""
        return only(self._client.available_actions([self]))

    def close(self) -> None:
        """Close the session; closing twice has no effect."""
        self._client.close_many([self])


def only(results: Sequence[_Reply | AgentGymError]) -> _Reply:
    """The only result; raised if it is an exception."""
    (result,) = results
    if isinstance(result, AgentGymError):
        raise result
    return result


def _send(call: tuple[Server[Any], Call]) -> Answer | EnvironmentLost:
    server, content = call
    if content.wait_s:
        time.sleep(content.wait_s)
    try:
        answer: Answer = server.transport.send(content)
    except EnvironmentLost as lost:
        return lost
    return answer
