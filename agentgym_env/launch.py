"""Starts, shares and stops local environment servers, each in its own process."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import IO, Any, Final, cast

from agentgym_env.errors import BadRequest, ServerStartFailed
from agentgym_env.registration import find

logger = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S = 8.0
_KEPT_LINES = 40
_AGENTGYM: Final = "from agentgym_env.cli import main; main()"
"""Runs a command of `agentgym`; the package that has it is found by its entry point."""


class LocalServer(AbstractContextManager["LocalServer"]):
    """A reference to a local server, which stops when its last reference is closed."""

    def __init__(self, shared: _SharedServer) -> None:
        self._shared = shared
        self._closed = False

    @property
    def address(self) -> str:
        """`http://127.0.0.1:port`."""
        return self._shared.address

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server's process."""
        return self._shared.process

    def close(self) -> None:
        """Release the server; closing twice has no effect."""
        if not self._closed:
            self._closed = True
            _let_go(self._shared)

    def __exit__(self, *error: object) -> None:
        self.close()


def local_server(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> LocalServer:
    """A server of `env_id` on a free port of this machine; raises `ServerStartFailed`.

    Within a process, equal ids and settings share one server. It ends with its last user, at the
    process's end, or when the process dies.
    """
    entry_point = find(env_id).entry_point
    try:
        settings = json.dumps(dict(env_kwargs or {}), sort_keys=True)
    except TypeError as error:
        raise BadRequest(
            f"{env_id}'s keyword arguments are sent to another process and must be JSON: {error}"
        ) from error
    # A forked process has its parent's table but must not end its parent's servers.
    key = (os.getpid(), env_id, settings)
    with _lock:
        shared = _running.get(key)
        if shared is None or shared.process.poll() is not None:
            shared = _running[key] = _SharedServer(env_id, entry_point, settings)
        shared.holds += 1
    return LocalServer(shared)


def child_environment() -> dict[str, str]:
    """The environment variables for a child process that imports from the same path.

    An environment may be a plain file that only this process's path knows.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}


class _SharedServer:
    """The server's process and the number of references to it."""

    def __init__(self, env_id: str, entry_point: str, settings: str) -> None:
        self.holds = 0
        self.owner = os.getpid()
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
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
        self._listener = threading.Thread(target=self._read_stderr, daemon=True)
        self._listener.start()
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
                return int(json.loads(line)["port"])
            # It closed its output, so it is ending and may be about to say why.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_TIMEOUT_S)
        self.end()
        self._listener.join(1.0)
        last = "\n".join(self._last_lines) or "(no output)"
        raise ServerStartFailed(
            f"the local server of {env_id} did not start (exit status "
            f"{self.process.returncode}); its last lines are:\n{last}"
        )

    def _read_report(self, lines: queue.Queue[bytes]) -> None:
        with cast("IO[bytes]", self.process.stdout) as stdout:
            lines.put(stdout.readline())

    def _read_stderr(self) -> None:
        with cast("IO[bytes]", self.process.stderr) as stderr:
            for raw in stderr:
                line = raw.decode("utf-8", "replace").rstrip()
                self._last_lines.append(line)
                logger.warning("[server %d] %s", self.process.pid, line)


def _let_go(shared: _SharedServer) -> None:
    if shared.owner != os.getpid():
        return
    with _lock:
        shared.holds -= 1
        if shared.holds > 0:
            return
        for key in [key for key, running in _running.items() if running is shared]:
            del _running[key]
    shared.end()


def _end_all() -> None:
    with _lock:
        ours = [shared for shared in _running.values() if shared.owner == os.getpid()]
        _running.clear()
    for shared in ours:
        shared.end()


def _renew_lock() -> None:
    # Another thread may have held the lock when this process was forked.
    global _lock
    _lock = threading.Lock()


_lock = threading.Lock()
_running: dict[tuple[int, str, str], _SharedServer] = {}
atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
