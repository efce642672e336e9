"""Reading a GGUF file once, where transformers reads it four times."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

_READS: Final = ("GGUFReader", "get_tensor_name_map")
_lock = threading.Lock()


@contextmanager
def read_once() -> Iterator[None]:
    """Keep what gguf made of a file until the end.

    transformers opens the file anew for the tokenizer, the config and the weights, each time with
    all the tokens in Python, and makes the map of names once for each of the model's modules: half
    the time that a small model takes to load.
    """
    import gguf

    with _lock:
        own = {name: getattr(gguf, name) for name in _READS}
        try:
            for name, made in own.items():
                setattr(gguf, name, cache(made))
            yield
        finally:
            for name, made in own.items():
                setattr(gguf, name, made)
