"""A gather for tensors of which processes have unequally many rows, which TRL's loss makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator
from torch import Tensor


@contextmanager
def ragged_gather(accelerator: Accelerator) -> Iterator[None]:
    """Within, `accelerator.gather` fills the rows that a process lacks with NaN.

    TRL gathers a clip ratio of each row of a loss. Its processes have equally many rows; ours cut a
    step into passes by tokens, and torch's gather of unequal tensors aborts or gives garbage. The
    NaN are passed over where TRL takes the extremes.
    """
    if accelerator.num_processes == 1:
        yield
        return
    gather: Any = accelerator.gather

    def padded(tensor: Tensor) -> Any:
        if tensor.dim() and tensor.is_floating_point():
            tensor = accelerator.pad_across_processes(tensor, pad_index=float("nan"))
        return gather(tensor)

    accelerator.gather = padded  # type: ignore[method-assign]
    try:
        yield
    finally:
        accelerator.gather = gather  # type: ignore[method-assign]
