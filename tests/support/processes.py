"""Whether processes have ended, on a machine whose first process reaps orphans and on another."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from waiting import until


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended; where nobody reaps it, it stays a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone(processes: Iterable[psutil.Process]) -> bool:
    """Whether all of them end."""
    return bool(until(lambda: all(map(is_gone, processes)), f"{processes} do not end"))
