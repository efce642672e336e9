"""Processes of browsers: one question at a time, a deadline, kill, and start again."""

from __future__ import annotations

import contextlib
import logging
import select
import subprocess
import tempfile
import threading
import weakref
from typing import IO, Any, Final, cast

import msgspec
import psutil

from agentgym_env.errors import EnvironmentFault
from agentgym_servers.host.logs import event
from agentgym_servers.web.chromium.executable import find_chromium
from agentgym_servers.web.chromium.family import kill_all
from agentgym_servers.web.chromium.interpreter import web_environment, web_python
from agentgym_servers.web.chromium.messages import (
    Answer,
    End,
    Failed,
    Question,
    Ready,
    receive,
    send,
)

MAX_EPISODES: Final = 8
"""In one browser; more are no faster, and each takes memory."""
TIMEOUT_S: Final = 30.0
"""Seconds for one answer. A page that never returns takes its browser's other episodes with it."""
_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 5.0

logger = logging.getLogger(__name__)


class Worker:
    """A running process with a browser."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self.episodes: set[str] = set()
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._lock = threading.Lock()
        find_chromium()  # to say so here, and not in a log
        # A browser that is killed leaves its profile behind.
        folder = tempfile.TemporaryDirectory(prefix="agentgym-web-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [web_python(), "-P", "-m", "agentgym_servers.web.chromium.worker", folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=web_environment(),
            # Ctrl-C is this process's to handle.
            start_new_session=True,
        )
        # When nothing refers to it any more, and at the end of this process.
        self._end = weakref.finalize(self, _end, self._process, folder)
        ready = self._receive(_START_TIMEOUT_S, Ready)
        logger.debug("browser process %d: Chromium %s", self._process.pid, ready.browser)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def ask(self, question: Question) -> Any:
        """The answer to a question; raises `EnvironmentFault` where there is none in time."""
        with self._lock:
            if not self.alive:
                raise EnvironmentFault("the browser was ended", "environment_error")
            try:
                send(cast("IO[bytes]", self._process.stdin), question)
            except BrokenPipeError as error:
                raise self._lost(error) from error
            answer = self._receive(self._timeout_s, Answer)
        if isinstance(answer, Failed) and answer.kind in ("lost", "fault"):
            self.episodes.discard(question.episode)
            raise EnvironmentFault(answer.message, "environment_error")
        return answer

    def end(self, question: End) -> None:
        """End an episode, if it is still there."""
        self.episodes.discard(question.episode)
        if self.alive:
            try:
                self.ask(question)
            except EnvironmentFault as error:
                logger.debug("episode %s went with its browser: %s", question.episode, error)

    def close(self) -> None:
        """End its process and its browser; again does nothing."""
        self._end()

    def _receive(self, timeout_s: float, kind: Any) -> Any:
        stdout = cast("IO[bytes]", self._process.stdout)
        readable, _, _ = select.select([stdout], [], [], timeout_s)
        if not readable:
            event(logger, logging.ERROR, "browser_late", process=self.pid, seconds=timeout_s)
            self._end()
            raise EnvironmentFault(
                f"the browser took longer than {timeout_s:g} s; it was killed", "deadline"
            )
        try:
            return receive(stdout, kind)
        except (EOFError, msgspec.DecodeError) as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> EnvironmentFault:
        self._end()
        event(logger, logging.ERROR, "browser_lost", process=self.pid, reason=str(error))
        return EnvironmentFault(
            f"the browser's process died (exit status {self._process.returncode})",
            "environment_error",
        )


_workers: list[Worker] = []
_lock = threading.Lock()


def worker_for(episode: str) -> Worker:
    """A process with room for an episode, started if there is none."""
    with _lock:
        _workers[:] = [worker for worker in _workers if worker.alive]
        for worker in _workers:
            if len(worker.episodes) < MAX_EPISODES:
                worker.episodes.add(episode)
                return worker
        worker = Worker()
        worker.episodes.add(episode)
        _workers.append(worker)
        return worker


def _end(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    """End a process and all that it started, and remove what they wrote."""
    # Chromium is in a process group of its own; it ends with its pipe, unless a page blocks it.
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        kill_all(family)
    process.wait(_END_TIMEOUT_S)
    folder.cleanup()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(BrokenPipeError):
            cast("IO[bytes]", pipe).close()
