"""Simulators without an episode, kept running for the next one: to start one takes a second."""

from __future__ import annotations

from typing import Final

from agentgym_servers._sciworld_jvm import Simulator

MOST_IDLE: Final = 64
"""How many a process keeps: as many as a server holds sessions, unless it is told otherwise."""

_idle: list[Simulator] = []


def borrow() -> Simulator:
    """A simulator that nobody else has, started if none stands idle."""
    while _idle:
        simulator = _idle.pop()
        if simulator.alive:
            return simulator
    return Simulator()


def give_back(simulator: Simulator) -> None:
    """Keep a simulator for whoever borrows next; one too many is ended."""
    if simulator.alive and len(_idle) < MOST_IDLE:
        _idle.append(simulator)
    else:
        simulator.close()
