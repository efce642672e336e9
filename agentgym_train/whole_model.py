"""A model that one process may call alone, whatever way the trainer has spread its weights.

Where every process holds all weights (one process, DDP, ZeRO-1 and ZeRO-2) it is the trainer's own
model. FSDP2 and ZeRO-3 shard the weights, and then each forward is a collective call: processes
whose episodes differ in turns would wait for one another for ever. There it is a copy, made whole
again by one gathering of the weights a step, which every process does at the same place.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgym_env.errors import BadRequest

_WRAPPER = "_checkpoint_wrapped_module."
"""What activation checkpointing puts into the names of weights."""


class WholeModel:
    """Gives a model to sample from. Knows nothing about sampling."""

    def __init__(self) -> None:
        self._copy: Any = None

    def of(self, model: Any) -> Any:
        """`model`, or a copy with its present weights where they are sharded.

        A collective: every process must call it at the same step. The copy takes the memory of a
        whole model on each process.
        """
        if type(model).__name__ == "FullyShardedDataParallel":
            raise BadRequest(
                "FSDP1 flattens the weights, and episodes can not be sampled from them; use FSDP2 "
                "(fsdp_version: 2, examples/accelerate/fsdp2.yaml)"
            )
        if not any(_is_sharded(weight) for weight in model.parameters()):
            return model
        if self._copy is None:
            self._copy = _empty_like(model)
        whole = dict(self._copy.named_parameters())
        with torch.no_grad():
            for name, weight in model.named_parameters():
                with _gathered(weight) as full:
                    whole[name.replace(_WRAPPER, "")].copy_(full)
        return self._copy


def _is_sharded(weight: Tensor) -> bool:
    return isinstance(weight, DTensor) or hasattr(weight, "ds_id")


def _empty_like(model: Any) -> Any:
    """A model of the same kind on this process's device, its weights still to be filled in."""
    weight = next(model.parameters())
    with torch.device(weight.device):
        made = type(model)(copy.deepcopy(model.config))
    return made.to(dtype=model.config.dtype or weight.dtype).eval().requires_grad_(False)


@contextlib.contextmanager
def _gathered(weight: Tensor) -> Iterator[Tensor]:
    """The whole of one weight."""
    if isinstance(weight, DTensor):
        yield weight.full_tensor()
    elif hasattr(weight, "ds_id"):
        from deepspeed import zero  # type: ignore[import-not-found]

        with zero.GatheredParameters([weight]):
            yield weight
    else:
        yield weight
