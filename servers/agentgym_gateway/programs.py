"""Black-box agents: programs with their own code that play an episode through the gateway.

An agent is a command, a Python callable, or a program started elsewhere. It talks to a model at an
address that is OpenAI-compatible, and to the environment at the same address. See docs/gateway.md.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import shlex
import shutil
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from agentgym_env.errors import ConfigError, EpisodeFailure
from agentgym_env.printable import one_line
from agentgym_env.process_guard import end_group, guard
from agentgym_env.spaces import clean_text

_DRAIN_S = 1.0
"""Time to read what an ended process has written."""
_FRAME: Final = re.compile(r'File "(.+)", line (\d+)')
_MAX_VARIABLE_BYTES: Final = 100_000
"""Linux takes 128 KiB with the name; the whole text is at `/episode`."""
_SHOWN: Final = 300
"""Characters of a crashed agent's last output that its error quotes."""
_SHOWN_LINES: Final = 2
"""Lines of it."""


class AgentLost(EpisodeFailure):
    """The agent's own program failed."""

    kind = "agent_lost"


@dataclass(frozen=True, slots=True)
class EpisodeAccess:
    """What an agent is told: where the model and the environment are, and what to do."""

    base_url: str
    """For OpenAI clients; the environment is at `/episode` below it."""
    api_key: str
    """Of this episode alone."""
    task: str
    seed: int
    observation: str
    instruction: str
    horizon: int
    """Maximum steps in the environment."""

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables of a command."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "AGENTGYM_EPISODE_URL": f"{self.base_url}/episode",
            "AGENTGYM_TASK": _fitting(self.task),
            "AGENTGYM_SEED": str(self.seed),
            "AGENTGYM_OBSERVATION": _fitting(self.observation),
            "AGENTGYM_INSTRUCTION": _fitting(self.instruction),
            "AGENTGYM_HORIZON": str(self.horizon),
        }


class Program(Protocol):
    """Starts an agent."""

    async def run(self, access: EpisodeAccess) -> None:
        """Run the agent to its end; raises `AgentLost` if it failed. Cancelling ends it."""
        ...


@dataclass(frozen=True, slots=True)
class Command(Program):
    """A process for each episode, whose environment variables are `EpisodeAccess.environ`."""

    words: tuple[str, ...]
    shows: bool = False
    """Whether its output is this process's, and not read for the errors."""

    def check(self) -> None:
        """Raise `ConfigError` if the program does not exist."""
        if shutil.which(self.words[0]) is None:
            raise ConfigError(
                f"the agent {shlex.join(self.words)} cannot be started: there is no program "
                f"{self.words[0]!r}"
            )

    async def run(self, access: EpisodeAccess) -> None:
        """Start the process and wait for its end; kill it and its children when cancelled."""
        process, output = await self._start(access)
        guard.add(process.pid)
        reading = asyncio.create_task(output.read()) if output else None
        try:
            # Not the end of its output: a child process that it left behind may hold that open.
            status = await process.wait()
        finally:
            end_group(process.pid)
            await process.wait()
            guard.remove(process.pid)
            if reading is not None:
                await asyncio.wait([reading], timeout=_DRAIN_S)
                reading.cancel()
        if status:
            said = _last_lines(output.last) if output else ""
            raise AgentLost(f"the agent ended with status {status}{said}")

    async def _start(
        self, access: EpisodeAccess
    ) -> tuple[asyncio.subprocess.Process, _Tail | None]:
        """The process, and its output.

        That comes by a pipe of our own: before Python 3.13 asyncio waits for the end of its own
        pipes and not only for the end of the process.
        """
        if self.shows:
            return await self._process(access, None), None
        reads, writes = os.pipe()
        output = _Tail(reads)
        try:
            return await self._process(access, writes), output
        except BaseException:
            output.close()
            raise
        finally:
            os.close(writes)

    async def _process(
        self, access: EpisodeAccess, output: int | None
    ) -> asyncio.subprocess.Process:
        """Start the process; its output goes to a pipe, or where this process's goes."""
        try:
            return await asyncio.create_subprocess_exec(
                *self.words,
                env={**os.environ, **access.environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"the agent {shlex.join(self.words)} cannot be started: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class Called(Program):
    """A Python callable, which is called with the `EpisodeAccess` of each episode.

    A coroutine function runs on the loop of the rollouts, any other in a thread. A thread cannot be
    ended: its requests are rejected after the episode.
    """

    function: Callable[[EpisodeAccess], Any]

    async def run(self, access: EpisodeAccess) -> None:
        """Call it and wait for its end."""
        try:
            if inspect.iscoroutinefunction(self.function):
                await _not_exiting(self.function(access))
            else:
                await _in_thread(self.function, access)
        except AgentLost:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise AgentLost("the agent was cancelled by its own code") from None
        except (KeyboardInterrupt, GeneratorExit):
            raise  # of a coroutine: it may be the user's, or the end of the loop
        except BaseException as error:
            raise raised(error) from error


class Elsewhere(Program):
    """A program that somebody else has started; it takes the episode from the gateway."""

    async def run(self, access: EpisodeAccess) -> None:
        """Wait; the end of the episode cancels it."""
        await asyncio.Event().wait()


def _fitting(text: str) -> str:
    """The text as an environment variable: without NUL, and not longer than a system allows."""
    data = clean_text(text).replace("\0", "").encode()
    return data[:_MAX_VARIABLE_BYTES].decode("utf-8", "ignore")


class _Tail:
    """Reads a pipe and keeps the end of what comes; closes it."""

    def __init__(self, pipe: int) -> None:
        self.last = b""
        self._pipe = open(pipe, "rb", buffering=0)  # noqa: SIM115 (the reader closes it)

    def close(self) -> None:
        """Close the pipe without reading it."""
        self._pipe.close()

    async def read(self) -> None:
        """Read to the end, or until it is cancelled."""
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), self._pipe
        )
        try:
            while part := await stream.read(65536):
                self.last = (self.last + part)[-4 * _SHOWN :]
        finally:
            transport.close()


def _last_lines(output: bytes) -> str:
    """The end of a program's output; of a traceback, the exception and the program's own line."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines()]
    # Python marks a part of a line by carets below it.
    lines = [line for line in lines if line.strip("~^ ")]
    frames = [found for line in lines if (found := _FRAME.match(line))]
    own = [f"{found[1]}:{found[2]}" for found in frames if "/lib/python" not in found[1]]
    said = [*lines[-1:], *own[-1:]] if own else lines[-_SHOWN_LINES:]
    return ": " + one_line(" | ".join(said), _SHOWN) if said else " and printed nothing"


def raised(error: BaseException) -> AgentLost:
    """The loss of an agent whose code raised an error."""
    return AgentLost(f"the agent raised {type(error).__name__}: {error}")


async def _not_exiting(work: Awaitable[Any]) -> None:
    """Await an agent; `sys.exit()` ends the agent, not the run."""
    try:
        await work
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"it exited with {end.code}") from None


async def _in_thread(function: Callable[[EpisodeAccess], Any], access: EpisodeAccess) -> None:
    """Call it in a thread of its own: a pool's threads would be few, and one that hangs keeps its.

    What a cancelled call does further is ignored.
    """
    loop = asyncio.get_running_loop()
    # A result, since no future takes every exception: StopIteration for one.
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(error)

    def call() -> None:
        error: BaseException | None = None
        try:
            function(access)
        except SystemExit as end:
            error = RuntimeError(f"it exited with {end.code}") if end.code else None
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=call, daemon=True, name="agent").start()
    if (error := await ended) is not None:
        raise raised(error) from error
