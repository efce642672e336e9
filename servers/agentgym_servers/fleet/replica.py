"""Replica: keeps one server of a fleet running on its machine; it knows nothing about Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Final, Literal, cast

import msgspec
import requests
from msgspec import Struct

from agentgym_env.errors import AgentGymError
from agentgym_env.launch import child_environment, free_port
from agentgym_env.wire import EnvCard
from agentgym_servers.fleet.commands import launch_of
from agentgym_servers.fleet.spec import ServerGroup

logger = logging.getLogger(__name__)

State = Literal["starting", "ready", "failed"]

_WATCH_S: Final = 0.1
"""Time between two looks at the process; it is also asked that often until it is ready."""
_PROBE_S: Final = 0.5
_PROBE_TIMEOUT_S: Final = 2.0
_LOAD_EVERY_S: Final = 1.0
_END_TIMEOUT_S: Final = 8.0
_KEPT_LINES: Final = 40
_MANY_FAILURES: Final = 3
"""Failed starts in a row after which a server counts as failed; it is still tried again."""
_MAX_PAUSE_S: Final = 15.0
_SESSIONS: Final = re.compile(r"^agentgym_sessions (\d+)", re.MULTILINE)


class Report(Struct, frozen=True):
    """What a replica says of its server."""

    group: str
    digest: str
    state: State
    address: str
    node: str
    """Address of the machine."""
    load: int = 0
    """Open sessions, or requests under way."""
    places: int = 0
    """Load that it takes; 0 if it is not known yet."""
    restarts: int = 0
    age_s: float = 0.0
    """Time since the replica was created."""
    error: str = ""
    """Why it is not ready, as far as is known."""


class Replica:
    """One server's process, which is restarted at the same address when it ends or hangs."""

    def __init__(self, name: str, group: bytes, host: str, token: str) -> None:
        """`group` is a `ServerGroup` as JSON; `host` is the address that the server listens on."""
        self._name = name
        self._group = msgspec.json.decode(group, type=ServerGroup)
        self._digest = self._group.digest()
        self._host = host
        self._token = token
        self._port = free_port(host)
        self._created = time.monotonic()
        self._state: State = "starting"
        self._load = 0
        self._places = self._group.places or 0
        self._restarts = 0
        self._failures = 0
        self._error = ""
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._last_answer = 0.0
        self._load_read = 0.0
        self._over = threading.Event()
        self._http = requests.Session()
        self._http.headers["Authorization"] = f"Bearer {token}"
        self._http.trust_env = False
        self._folder = tempfile.TemporaryDirectory(prefix="agentgym-fleet-")
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """`http://host:port`."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}"

    def report(self) -> Report:
        """The state now."""
        return Report(
            group=self._name,
            digest=self._digest,
            state=self._state,
            address=self.address,
            node=self._host,
            load=self._load,
            places=self._places,
            restarts=self._restarts,
            age_s=round(time.monotonic() - self._created, 1),
            error=self._error,
        )

    def stop(self) -> None:
        """Stop the server; steps under way have a few seconds to end."""
        self._over.set()
        self._thread.join()
        self._folder.cleanup()

    def _supervise(self) -> None:
        """Start the server, and restart it whenever it ends or does not answer, until `stop`."""
        try:
            while not self._over.is_set():
                try:
                    self._run_once()
                except (OSError, AgentGymError) as error:
                    self._note_failure(f"{type(error).__name__}: {error}")
                if not self._over.is_set():
                    self._restarts += 1
                    self._over.wait(self._pause_s())
        finally:
            self._end()

    def _run_once(self) -> None:
        """Start the process and return when it has ended, hangs, or shall stop."""
        began = self._last_answer = time.monotonic()
        listening = self._start()
        group, process = self._group, cast("subprocess.Popen[bytes]", self._process)
        was_ready = False
        while not self._over.wait(_WATCH_S):
            if (status := process.poll()) is not None:
                listening.join(1.0)
                self._end()
                return self._lose(was_ready, f"exited with status {status}")
            if was_ready and time.monotonic() - self._last_answer < _PROBE_S:
                continue
            if self._answers():
                was_ready, self._last_answer = True, time.monotonic()
                self._state, self._error, self._failures = "ready", "", 0
                continue
            silent = time.monotonic() - self._last_answer
            if was_ready and silent > group.unhealthy_s:
                self._end()
                return self._lose(True, f"did not answer for {silent:.0f} s")
            if not was_ready and time.monotonic() - began > group.start_s:
                self._end()
                return self._lose(False, f"did not start in {group.start_s:g} s")
        return None

    def _start(self) -> threading.Thread:
        launch = launch_of(
            self._group, self._host, self._port, self._token, Path(self._folder.name)
        )
        self._lines.clear()
        self._process = subprocess.Popen(
            launch.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**child_environment(), **launch.env, **self._group.env_vars},
            start_new_session=True,
        )
        thread = threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        thread.start()
        return thread

    def _listen(self, stream: IO[bytes]) -> None:
        with stream as lines:
            for raw in lines:
                line = raw.decode("utf-8", "replace").rstrip()
                self._lines.append(line)
                logger.info("[%s] %s", self._name, line)

    def _answers(self) -> bool:
        """Whether the server answers; its load is read from time to time."""
        try:
            if not self._http.get(f"{self.address}/health", timeout=_PROBE_TIMEOUT_S).ok:
                return False
            if time.monotonic() - self._load_read > _LOAD_EVERY_S:
                self._load_read = time.monotonic()
                self._read_load()
        except requests.RequestException:
            return False
        return True

    def _read_load(self) -> None:
        if self._group.kind == "vllm":
            answer = self._http.get(f"{self.address}/load", timeout=_PROBE_TIMEOUT_S)
            self._load = int(answer.json()["server_load"]) if answer.ok else 0
            self._places = self._places or int(self._group.options.get("max_num_seqs", 256))
            return
        if not self._places:
            card = self._http.get(f"{self.address}/v1/env", timeout=_PROBE_TIMEOUT_S)
            self._places = msgspec.json.decode(card.content, type=EnvCard).max_sessions
        page = self._http.get(f"{self.address}/metrics", timeout=_PROBE_TIMEOUT_S).text
        found = _SESSIONS.search(page)
        self._load = int(found[1]) if found else 0

    def _lose(self, was_ready: bool, why: str) -> None:
        logger.warning("%s at %s %s", self._name, self.address, why)
        if was_ready:
            self._state, self._error = "starting", why
            return
        self._note_failure(why)
        # Another program may have taken the port.
        self._port = free_port(self._host)

    def _note_failure(self, why: str) -> None:
        self._failures += 1
        output = "\n".join(self._lines)
        self._error = f"{why}; its last output was:\n{output}" if output else why
        self._state = "failed" if self._failures >= _MANY_FAILURES else "starting"

    def _pause_s(self) -> float:
        return min(_MAX_PAUSE_S, 0.5 * 2**self._failures) if self._failures else 0.0

    def _end(self) -> None:
        """End every process of the server: politely, then by force."""
        process, self._process = self._process, None
        self._load = 0
        if process is None:
            return
        with contextlib.suppress(OSError):
            cast("IO[bytes]", process.stdin).close()
        for signum, patience_s in ((signal.SIGTERM, _END_TIMEOUT_S), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
