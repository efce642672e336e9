"""The processes of one run: how they come together, and the one way in which they speak.

Each process plays its own episodes with its own model, loop and local server, and nothing in a
rollout waits for another process, so episodes may differ in length as they like. The processes meet
where all of them must come by: after the rollouts of a step, in the optimizer step, and at the
ends of an evaluation. Each of these is reached equally often by every process.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch import distributed

from agentgym_env.errors import BadRequest

_T = TypeVar("_T")

WAIT_S = 4 * 3600
"""Longest wait for another process, of which a slow world may make a long one. A process that died
is noticed by the launcher, not by this."""


def join(processes: int, wait_s: float = WAIT_S) -> PartialState:
    """Come together; raises `BadRequest` unless there are as many as the launcher started."""
    # Without `cpu`, processes on a machine without a GPU would each believe to be alone.
    cpu = not torch.cuda.is_available()
    if cpu and processes > 1:
        # Otherwise accelerate chooses cpu:0, and torch.load cannot map a checkpoint to that name.
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    state = PartialState(cpu=cpu, timeout=timedelta(seconds=wait_s))
    if state.num_processes != processes:
        raise BadRequest(
            f"{processes} processes were started and {state.num_processes} came together; start "
            "them with `agentgym train CONFIG --num-processes N` or with one of the configs in "
            "examples/accelerate"
        )
    return state


def gathered(own: _T) -> list[_T]:
    """What every process has, by rank. A collective: every process must call it."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [own]
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, own)
    return every
