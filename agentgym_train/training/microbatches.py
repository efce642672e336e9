"""Micro-batches: rows of similar length that go through a model in one forward and backward pass.

Used by the updates of all methods and by the critic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor

from agentgym_train.models.positions import PASS_COST, like_lengths, pass_cost_of
from agentgym_train.training.rows import TokenRows

MicroBatches = list[list[int]]
"""Row indices of each forward and backward pass; every row is in exactly one."""

_BUDGET = {"cpu": 4096}

_BUDGET_ELSEWHERE = 16384
"""Default tokens per micro-batch; the value for CPUs is measured."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some rows of this process."""

    rows: list[int]
    is_real: bool
    """False if another process has more micro-batches: the pass is made, and has no weight."""
    is_last: bool


def plan(
    lengths: Sequence[int],
    budget: int,
    *,
    shared_rows: bool,
    pass_cost: int = PASS_COST,
    unit: int = 1,
) -> MicroBatches:
    """Micro-batches of at most `budget` tokens with padding; a longer row gets its own.

    Each `unit` consecutive rows stay together. `pass_cost` is the overhead of a micro-batch in
    tokens. The largest is first, so that a run that exceeds the memory fails at its first
    micro-batch.
    """
    units = [lengths[first : first + unit] for first in range(0, len(lengths), unit)]
    sizes = [sum(own) if shared_rows else unit * max(own) for own in units]
    passes = _bins(sizes, budget) if shared_rows else like_lengths(sizes, pass_cost, budget)
    passes.sort(key=lambda chosen: -sum(sizes[n] for n in chosen))
    return [[n * unit + k for n in chosen for k in range(unit)] for chosen in passes]


class MicroBatcher:
    """Divides the rows of a model's passes; all processes make the same number of them.

    The calls of a distributed model must match.
    """

    def __init__(
        self, accelerator: Accelerator, model: Any, budget: int, *, shared_rows: bool
    ) -> None:
        """`budget` is the maximum tokens per pass; 0 chooses a default for the device."""
        self.shared_rows = shared_rows
        self._accelerator = accelerator
        self._budget = budget or _BUDGET.get(accelerator.device.type, _BUDGET_ELSEWHERE)
        self._pass_cost = pass_cost_of(model)

    def split(self, rows: TokenRows) -> Iterator[MicroBatch]:
        """The micro-batches of R rows. A collective."""
        lengths = rows.lengths.tolist()
        passes = plan(
            lengths,
            self._budget,
            shared_rows=self.shared_rows,
            pass_cost=self._pass_cost,
            unit=rows.unit,
        )
        count = torch.tensor([len(passes)], device=self._accelerator.device)
        most = int(self._accelerator.gather(count).max())
        shortest = min(passes, key=lambda chosen: sum(lengths[row] for row in chosen))
        for number in range(most):
            is_real = number < len(passes)
            chosen = passes[number] if is_real else shortest[-rows.unit :]
            yield MicroBatch(chosen, is_real, number == most - 1)

    def collected(self, rows: TokenRows, score: Callable[[TokenRows], Tensor]) -> Tensor:
        """(R, W) what `score` returns for the rows of each micro-batch. A collective."""
        found: Tensor | None = None
        for part in self.split(rows):
            values = score(rows.take(part.rows))
            if found is None:
                found = values.new_zeros(rows.ids.shape)
            if part.is_real:
                chosen = torch.tensor(part.rows, device=found.device)
                found[chosen, : values.shape[1]] = values
        assert found is not None
        return found

    def waiting(self, model: Any, *, is_last: bool) -> AbstractContextManager[Any]:
        """Context of a pass: DDP averages gradients at the last one, sharded models at each."""
        by_ddp = self._accelerator.distributed_type in (
            DistributedType.MULTI_GPU,
            DistributedType.MULTI_CPU,
        )
        return self._accelerator.no_sync(model) if by_ddp and not is_last else nullcontext()


def backward(accelerator: Accelerator, loss: Tensor, *, is_last: bool) -> None:
    """Add the gradient of a micro-batch; DeepSpeed takes the optimizer step after the last one."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        engine = accelerator.deepspeed_engine_wrapped
        engine.backward(loss, sync_gradients=is_last, scale_wrt_gas=False)
    else:
        accelerator.backward(loss)


def _bins(lengths: Sequence[int], budget: int) -> MicroBatches:
    """First fit, longest rows first."""
    passes: MicroBatches = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda r: -lengths[r]):
        fits = next((n for n, left in enumerate(room) if left >= lengths[row]), None)
        if fits is None:
            passes.append([row])
            room.append(budget - lengths[row])
        else:
            passes[fits].append(row)
            room[fits] -= lengths[row]
    return passes
