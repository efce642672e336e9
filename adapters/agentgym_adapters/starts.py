"""Starts: the episodes of another framework's dataset, each a task and a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from agentgym_env.errors import BadRequest
from agentgym_env.remote import INPROCESS, RemoteEnv, make_env

Server = str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Starts:
    """The content of a dataset."""

    instruction: str
    """The instruction for the policy."""
    rows: tuple[tuple[str, int], ...]
    """Task and seed of each episode."""


def draw_starts(tasks: Sequence[str], n: int | None, seed: int) -> tuple[tuple[str, int], ...]:
    """`n` starts; default: each task once. `seed` determines the order of the tasks.

    Where there are more starts than tasks they come again, with other seeds.
    """
    count = len(tasks) if n is None else n
    if count < 1:
        raise BadRequest(f"n is at least 1, got {n}")
    draws = random.Random(f"starts/{seed}")
    order = list(tasks)
    draws.shuffle(order)
    return tuple((order[i % len(order)], draws.getrandbits(31)) for i in range(count))


def starts_of(
    env_id: str,
    split: str,
    n: int | None,
    seed: int,
    *,
    server: Server = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Starts:
    """The starts of a split, of running servers' environment or of a local one."""
    env = connect_env(env_id, server, env_kwargs)
    try:
        told = str(env.get_wrapper_attr("instruction"))
        tasks = env.get_wrapper_attr("tasks").split(split)
    finally:
        env.close()
    return Starts(told, draw_starts(tasks, n, seed))


def connect_env(
    env_id: str, server: Server = None, env_kwargs: Mapping[str, Any] | None = None
) -> gymnasium.Env[str, str]:
    """The environment, such that a fault of its code comes as an `EpisodeFailure`."""
    make = RemoteEnv if server == INPROCESS else make_env
    return make(env_id, server, **dict(env_kwargs or {}))
