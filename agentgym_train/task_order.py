"""Which tasks an optimizer step looks at: a function of the seed and the step alone.

TRL's sampler counts its epochs from the start of a process, so a run that is resumed in its second
epoch would be given the first one's order again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def tasks_of_step(tasks: Sequence[str], seed: int, number: int, wanted: int) -> list[str]:
    """The `wanted` tasks of the rollout `number`, which counts from 0.

    Each epoch goes through the tasks in an order of its own, the order of TRL's sampler in a run
    that is never broken off; what is left over at an epoch's end is left out of it. Fewer tasks
    than are wanted come several times in a step.
    """
    steps = max(1, len(tasks) // wanted)
    epoch, place = divmod(number, steps)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(epoch + 1):
        order = torch.randperm(len(tasks), generator=generator).tolist()
    return [tasks[order[i % len(tasks)]] for i in range(place * wanted, (place + 1) * wanted)]
