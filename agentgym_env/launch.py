"""Starts, shares and stops local environment servers, each in its own process."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import IO, Any, Final, cast

from agentgym_env import main_module
from agentgym_env.errors import (
    AgentGymError,
    BadRequest,
    MissingExtra,
    ServerStartFailed,
    UnknownEnvironment,
)
from agentgym_env.registry import find

logger = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S = 8.0
_KEPT_LINES = 40
_AGENTGYM: Final = "from agentgym_env.cli import main; main()"
"""Runs a command of `agentgym`; the package that has it is found by its entry point."""
_REPORTED: Final = {kind.__name__: kind for kind in (BadRequest, MissingExtra, UnknownEnvironment)}
"""Errors of another process that this one raises as its own."""


class SharedServer:
    """A server's process; it ends when its last `LocalServer` is closed."""

    address: str
    """`http://127.0.0.1:port`."""
    process: subprocess.Popen[bytes]

    def __init__(self) -> None:
        self.holds = 0
        self.owner = os.getpid()
        self.last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._listener: threading.Thread | None = None

    def listen(self, stream: IO[bytes] | None, level: int) -> None:
        """Log the lines of an output in a thread, and keep the last ones."""

        def read() -> None:
            with cast("IO[bytes]", stream) as lines:
                for raw in lines:
                    line = raw.decode("utf-8", "replace").rstrip()
                    self.last_lines.append(line)
                    logger.log(level, "[server %d] %s", self.process.pid, line)

        self._listener = threading.Thread(target=read, daemon=True)
        self._listener.start()

    def last_output(self) -> str:
        """The last lines of a process that has ended."""
        if self._listener is not None:
            self._listener.join(1.0)
        return "\n".join(self.last_lines) or "(no output)"

    def end(self) -> None:
        """End the process."""
        raise NotImplementedError


class SharedServers:
    """The servers of one kind that this process started, by their settings."""

    def __init__(self) -> None:
        self._renew_lock()
        self._running: dict[tuple[object, ...], SharedServer] = {}
        atexit.register(self._end_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    def get(self, settings: tuple[object, ...], start: Callable[[], SharedServer]) -> SharedServer:
        """The running server with these settings, or a new one; `release` it in the end."""
        # A forked process has its parent's table but must not end its parent's servers.
        key = (os.getpid(), *settings)
        with self._lock:
            shared = self._running.get(key)
            if shared is None or shared.process.poll() is not None:
                shared = self._running[key] = start()
            shared.holds += 1
        return shared

    def release(self, shared: SharedServer) -> None:
        """End the server if nothing else uses it."""
        if shared.owner != os.getpid():
            return
        with self._lock:
            shared.holds -= 1
            if shared.holds > 0:
                return
            for key in [key for key, running in self._running.items() if running is shared]:
                del self._running[key]
        shared.end()

    def _end_all(self) -> None:
        ours = [shared for shared in self._running.values() if shared.owner == os.getpid()]
        self._running.clear()
        for shared in ours:
            shared.end()

    def _renew_lock(self) -> None:
        # Another thread may have held the lock when this process was forked.
        self._lock = threading.Lock()


class LocalServer(AbstractContextManager["LocalServer"]):
    """A reference to a local server, which stops when its last reference is closed."""

    def __init__(self, get: Callable[[], SharedServer], servers: SharedServers) -> None:
        self._get = get
        self._shared = get()
        self._servers = servers
        self._closed = False

    @property
    def address(self) -> str:
        """`http://127.0.0.1:port`."""
        return self._shared.address

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server's process."""
        return self._shared.process

    def replace_ended(self, wait_s: float = 0.0) -> bool:
        """Start another server, at another address, if the process has ended; whether it did.

        Waits up to `wait_s` for a process that no longer answers to end. Raises
        `ServerStartFailed`.
        """
        ended = self._shared
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended.process.wait(wait_s)
        if self._closed or ended.process.poll() is None:
            return False
        logger.warning(
            "the local server at %s ended (exit status %s); starting a new one",
            ended.address,
            ended.process.returncode,
        )
        self._shared = self._get()
        self._servers.release(ended)
        return True

    def close(self) -> None:
        """Release the server; closing twice has no effect."""
        if not self._closed:
            self._closed = True
            self._servers.release(self._shared)

    def __exit__(self, *error: object) -> None:
        self.close()


_SERVERS: Final = SharedServers()


def local_server(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> LocalServer:
    """A server of `env_id` on a free port of this machine.

    Within a process, equal ids and settings share one server. It ends with its last user, at the
    process's end, or when the process dies. Raises `BadRequest` for settings that the environment
    rejects, `MissingExtra` for what is not installed, and `ServerStartFailed` for other causes.
    """
    entry_point = main_module.importable(find(env_id).entry_point)
    try:
        settings = json.dumps(dict(env_kwargs or {}), sort_keys=True)
    except TypeError as error:
        raise BadRequest(
            f"{env_id}'s keyword arguments are sent to another process and must be JSON: {error}"
        ) from error

    def get() -> SharedServer:
        start = partial(_EnvServer, env_id, entry_point, settings)
        return _SERVERS.get((env_id, entry_point, settings), start)

    return LocalServer(get, _SERVERS)


def child_environment() -> dict[str, str]:
    """The environment variables for a child process that imports from the same path.

    An environment may be a plain file that only this process's path knows, or a class of its main
    program.
    """
    path = os.pathsep.join([*(path or "." for path in sys.path), *main_module.folders()])
    return {**os.environ, "PYTHONPATH": path}


def free_port(host: str) -> int:
    """A port of this machine that nothing uses now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken:
        taken.bind((host, 0))
        return int(taken.getsockname()[1])


def failure_report(error: AgentGymError) -> dict[str, str]:
    """What a process reports to the one that started it, as JSON; see `reported_failure`."""
    kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _REPORTED)
    return {"error": next(kinds, ServerStartFailed.__name__), "message": str(error)}


def reported_failure(report: Mapping[str, str]) -> AgentGymError:
    """The exception to raise for a report."""
    return _REPORTED.get(report["error"], ServerStartFailed)(report["message"])


class _EnvServer(SharedServer):
    """The server of an environment."""

    def __init__(self, env_id: str, entry_point: str, settings: str) -> None:
        super().__init__()
        self.process = subprocess.Popen(
            [
                # -P: the working directory must not shadow the standard library.
                sys.executable, "-P", "-c", _AGENTGYM, "serve", env_id, "--port", "0",
                "--embedded", "--entry-point", entry_point, "--env-kwargs", settings,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            # Ctrl-C is this process's to handle; the server must outlive its tidying up.
            start_new_session=True,
        )  # fmt: skip
        self.listen(self.process.stderr, logging.WARNING)
        try:
            self.address = f"http://127.0.0.1:{self._await_port(env_id)}"
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Terminate the process; kill it if it does not end in time."""
        cast("IO[bytes]", self.process.stdin).close()
        self.process.terminate()
        try:
            self.process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _await_port(self, env_id: str) -> int:
        lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read_report, args=(lines,), daemon=True).start()
        try:
            line = lines.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            pass
        else:
            if line:
                report = json.loads(line)
                if "port" in report:
                    return int(report["port"])
                raise reported_failure(report)
            # It closed its output, so it is ending and may be about to say why.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_TIMEOUT_S)
        self.end()
        raise ServerStartFailed(
            f"the local server of {env_id} did not start (exit status "
            f"{self.process.returncode}); its last lines are:\n{self.last_output()}"
        )

    def _read_report(self, lines: queue.Queue[bytes]) -> None:
        with cast("IO[bytes]", self.process.stdout) as stdout:
            lines.put(stdout.readline())
