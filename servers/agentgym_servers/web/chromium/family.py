"""Killing a process and all that it started, while they die of one another."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import psutil

_END_TIMEOUT_S: Final = 5.0


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """Kill processes and wait until they are gone, which takes milliseconds.

    Chromium's helpers end by themselves when its main process does, so they go while they are
    being killed; one that is gone is no reason to spare the next.
    """
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, _END_TIMEOUT_S)
