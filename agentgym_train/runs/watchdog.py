"""Stops a run of several processes when one of them, or its machine, is gone.

A machine that loses its power or its link closes no connection, so the other processes would wait
for it in their next collective operation for half an hour.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from torch import distributed
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from agentgym_env.errors import AgentGymError, ConfigError

logger = logging.getLogger(__name__)

SILENCE_VARIABLE: Final = "AGENTGYM_LOST_AFTER_S"
"""The environment variable with the silence, in seconds, after which a process counts as gone."""
STATUS: Final = 4
"""Exit status of a process that stopped because another one is gone."""
_SILENCE_S: Final = 60.0
_CLOSED: Final = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
)
"""What gloo and NCCL say of a process that ended."""
_ENDED: Final = "ended"
_FAILED: Final = "failed"
_UNSEEN: Final = 10.0
"""How much longer than others a process may be silent that has not been heard yet: it may still
load its model."""
_OWN_ERROR_S: Final = 10.0
"""Time in which a process meets the error of another one by itself."""


@contextmanager
def watching_processes(resume: str) -> Iterator[None]:
    """While this is open, end this process if another one fails or is silent for a minute.

    A process that only hangs is not noticed: its counter goes on.
    `resume` is the command that the message names. Does nothing in a run of one process.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        yield
        return
    if distributed.get_world_size() == 1:
        yield
        return
    store: Any = distributed.distributed_c10d._get_default_store()
    watch = Watch(
        store.clone(),
        distributed.get_rank(),
        distributed.get_world_size(),
        silence_s(),
        resume,
    )
    watch.start()
    last = _FAILED
    try:
        yield
        last = _ENDED
    except KeyboardInterrupt:
        last = _ENDED  # all processes are asked to stop
        raise
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _CLOSED):
            raise
        raise AgentGymError(
            f"another process of this run ended ({str(error).splitlines()[0][:300]}). {resume}"
        ) from error
    finally:
        watch.stop(last)


def silence_s() -> float:
    """The silence after which a process counts as gone; raises `ConfigError`."""
    text = os.environ.get(SILENCE_VARIABLE, "")
    try:
        found = float(text or _SILENCE_S)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ConfigError(f"{SILENCE_VARIABLE} must be a number of seconds above 0, got {text!r}")
    return found


class Watch:
    """Counts up in a store that all processes share, and looks at the counts of the others."""

    def __init__(self, store: Any, rank: int, size: int, silence_s: float, resume: str) -> None:
        self._store = PrefixStore("agentgym-watch", store)
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._silence_s = silence_s
        self._resume = resume
        self._over = threading.Event()
        self._counts: dict[int, str] = {}
        self._changed = dict.fromkeys(self._others, time.monotonic())
        """When the count of each last changed."""

    def start(self) -> None:
        """Begin. The store may not answer either, so that another thread looks at the clock."""
        for work in (self._exchange, self._judge):
            threading.Thread(target=work, daemon=True).start()

    def stop(self, last: str = _ENDED) -> None:
        """End; the other processes go on, unless the last word is that this one failed."""
        self._over.set()
        with suppress(RuntimeError):  # the store's process may have ended first
            self._store.set(str(self._rank), last)

    def _exchange(self) -> None:
        count = 0
        while not self._over.is_set():
            count += 1
            try:
                self._store.set(str(self._rank), str(count))
                for other in self._others:
                    self._look_at(other)
            except RuntimeError:
                logger.debug("the store does not answer; the clock decides", exc_info=True)
            self._over.wait(min(5.0, self._silence_s / 5))

    def _look_at(self, other: int) -> None:
        if not self._store.check([str(other)]):
            return
        found = self._store.get(str(other)).decode()
        if found == _ENDED or found != self._counts.get(other):
            self._counts[other], self._changed[other] = found, time.monotonic()

    def _judge(self) -> None:
        while not self._over.wait(1.0):
            for other in self._others:
                count = self._counts.get(other)
                silent_s = time.monotonic() - self._changed[other]
                if count == _FAILED and silent_s > min(self._silence_s, _OWN_ERROR_S):
                    self._end(f"process {other} of this run failed; see its error")
                limit_s = self._silence_s * (_UNSEEN if count is None else 1)
                if count not in (_ENDED, _FAILED) and silent_s > limit_s:
                    self._end(
                        f"process {other} of this run has not been heard of for {limit_s:g} s: it, "
                        "its machine or its link is gone"
                    )

    def _end(self, why: str) -> None:
        sys.stderr.write(f"error: {why}. This process stops. {self._resume}\n")
        sys.stderr.flush()
        # The main thread waits inside a collective operation, which nothing else interrupts.
        os._exit(STATUS)
