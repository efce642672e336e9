"""Whether processes have ended, on a machine whose first process reaps orphans and on another."""

from __future__ import annotations

import subprocess
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


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that a server started to serve; a guard is none."""
    return [
        child
        for child in psutil.Process(process.pid).children()
        if any(word.startswith("agentgym_servers.host") for word in child.cmdline())
    ]
