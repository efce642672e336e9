"""The order of rows over the epochs of SFT and DPO."""

from __future__ import annotations

import random


def row_order(rows: int, wanted: int, seed: int, *, shuffle: bool = True) -> list[int]:
    """Indices of `wanted` rows over as many epochs as needed; each epoch has every row once.

    A step may span two epochs, so that all steps have the same number of rows.
    """
    order: list[int] = []
    epoch = 0
    while len(order) < wanted:
        numbers = list(range(rows))
        if shuffle:
            random.Random(f"rows/{seed}/{epoch}").shuffle(numbers)
        order += numbers
        epoch += 1
    return order[:wanted]
