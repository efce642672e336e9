"""The processes of a distributed run: initializing them, and gathering objects and weights.

Each process runs its own episodes with its own model, event loop and local server. No process waits
for another one during a rollout, so episodes may differ in length. The processes synchronize after
the rollouts of a step, in the optimizer step, and at the end of an evaluation.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from agentgym_env.errors import ConfigError

_T = TypeVar("_T")

WAIT_S = 4 * 3600
"""Timeout of collectives. It is long because of slow environments; the launcher, not this timeout,
detects that a process died."""


def join(processes: int, wait_s: float = WAIT_S) -> PartialState:
    """Initialize this process; raises `ConfigError` if the number of processes is wrong."""
    # Without `cpu`, each process on a machine without a GPU would run as a single process.
    cpu = not torch.cuda.is_available()
    if cpu and processes > 1:
        # Otherwise accelerate chooses cpu:0, and torch.load cannot map a checkpoint to that name.
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    state = PartialState(cpu=cpu, timeout=timedelta(seconds=wait_s))
    if state.num_processes != processes:
        raise ConfigError(
            f"{processes} processes were started but {state.num_processes} connected; start "
            "them with `agentgym train CONFIG --num-processes N` or with one of the configs in "
            "examples/accelerate"
        )
    return state


def gathered(own: _T) -> list[_T]:
    """The values of `own` of all processes, by rank. A collective: every process must call it."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [own]
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, own)
    return every


def on_main_process(write: Callable[[], object]) -> None:
    """Write on the first process while the others wait. A collective."""
    gathered(None)
    if PartialState().is_main_process:
        write()
    gathered(None)


_WRAPPER = "_checkpoint_wrapped_module."
"""Prefix that activation checkpointing adds to the names of weights."""


class GatheredModel:
    """Gathers sharded weights into a model to sample from."""

    def __init__(self) -> None:
        self._copy: Any = None

    def gather(self, model: Any) -> Any:
        """`model`, or a copy with its current weights if they are sharded.

        A collective: every process must call it at the same step. The copy needs the memory of a
        whole model on each process.
        """
        if type(model).__name__ == "FullyShardedDataParallel":
            raise ConfigError(
                "FSDP1 flattens the weights, so they cannot be used for sampling; use FSDP2 "
                "(fsdp_version: 2, examples/accelerate/fsdp2.yaml)"
            )
        if not any(_is_sharded(weight) for weight in model.parameters()):
            return model
        if self._copy is None:
            self._copy = _empty_like(model)
        whole = dict(self._copy.named_parameters())
        with torch.no_grad():
            for name, weight in model.named_parameters():
                with gathered_weights(weight):
                    full = weight.full_tensor() if isinstance(weight, DTensor) else weight
                    whole[name.replace(_WRAPPER, "")].copy_(full)
        return self._copy


def _is_sharded(weight: Tensor) -> bool:
    return isinstance(weight, DTensor) or hasattr(weight, "ds_id")


def _empty_like(model: Any) -> Any:
    """A model of the same class on this process's device, with uninitialized weights."""
    if hasattr(model, "get_base_model"):  # LoRA
        from peft import get_peft_model

        adapter = copy.deepcopy(model.peft_config[model.active_adapter])
        made = get_peft_model(_empty_like(model.get_base_model()), adapter)
        return made.eval().requires_grad_(False)
    weight = next(model.parameters())
    with torch.device(weight.device):
        made = type(model)(copy.deepcopy(model.config))
    return made.to(dtype=model.config.dtype or weight.dtype).eval().requires_grad_(False)


@contextlib.contextmanager
def gathered_weights(*weights: Tensor | None) -> Iterator[None]:
    """Context in which weights that DeepSpeed divides among the processes are whole."""
    divided = [weight for weight in weights if hasattr(weight, "ds_id")]
    if not divided:
        yield
        return
    from deepspeed import zero  # type: ignore[import-not-found]

    with zero.GatheredParameters(divided):
        yield
