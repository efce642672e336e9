"""Killing a process and all that it started, while they die of one another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill processes; one that is gone is no reason to spare the next.

    Chromium's helpers end by themselves when its main process does, so they go while they are
    being killed.
    """
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
