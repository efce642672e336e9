"""Arrays in files, through memory maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def mapped(path: Path) -> NDArray[Any]:
    """A file's array, read where it is looked at."""
    # As a plain array: numpy's own class for maps makes every slice slow.
    return np.asarray(np.load(path, mmap_mode="r"))


def new_map(path: Path, dtype: type[np.generic], *shape: int) -> NDArray[Any]:
    """A new file's array; what is written to it goes to the file."""
    made = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)  # type: ignore[no-untyped-call]
    return np.asarray(made)
