"""TextSpace: any Unicode text up to a length.

Gymnasium's `Text` rejects characters outside a fixed charset and, in 1.4, returns wrong values from
`AsyncVectorEnv` with shared memory, so text environments have their own space.
"""

from __future__ import annotations

import math
import string
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Tuple
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.vector.utils import batch_differing_spaces, create_shared_memory
from gymnasium.wrappers.utils import create_zero_array

_SAMPLE_ALPHABET = string.ascii_lowercase + string.digits + " "
_SAMPLE_MAX_LENGTH = 24
MAX_NESTING: Final = 64
"""Levels of a value of JSON; at some hundreds, Python's functions and chat templates give up."""


class NestedTooDeeply(ValueError):
    """A value of JSON has more levels than anybody uses."""


def clean_text(text: str) -> str:
    """Join surrogate pairs, and replace each lone surrogate by U+FFFD: UTF-8 has neither."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: Any, levels: int = MAX_NESTING) -> Any:
    """A value of JSON that everybody can read: with clean texts, and without other values.

    Raises `ValueError` for numbers that are none in JSON, and `NestedTooDeeply` for more `levels`.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    if not isinstance(value, list | dict):
        return value
    if not levels:
        raise NestedTooDeeply(f"it is nested more than {MAX_NESTING} levels deep")
    if isinstance(value, list):
        return [clean_json(each, levels - 1) for each in value]
    return {clean_text(key): clean_json(each, levels - 1) for key, each in value.items()}


class TextSpace(Space[str]):
    """Every `str` of at most `max_length` characters; two spaces are equal if their lengths are."""

    def __init__(
        self, max_length: int = 1_000_000, seed: int | np.random.Generator | None = None
    ) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self.max_length = int(max_length)
        super().__init__((), None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed-size array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a short text of lower-case letters, digits and spaces (seeded by `seed`)."""
        if mask is not None or probability is not None:
            raise ValueError("TextSpace.sample takes no mask and no probability")
        longest = min(self.max_length, _SAMPLE_MAX_LENGTH)
        length = int(self.np_random.integers(1, longest + 1))
        letters = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[i] for i in letters)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((TextSpace, self.max_length))

    def __repr__(self) -> str:
        return f"TextSpace(max_length={self.max_length})"


# Gymnasium dispatches on the class of the space, so the checker cannot follow.
@batch_differing_spaces.register(TextSpace)
def _batch_text_spaces(spaces: list[TextSpace]) -> Tuple[Any]:  # type: ignore[misc]
    return Tuple([TextSpace(space.max_length) for space in spaces])


@create_zero_array.register(TextSpace)
def _empty_text(space: TextSpace) -> str:  # type: ignore[misc]
    """What `FrameStackObservation` and `DelayObservation` pad with."""
    return ""


@flatten_space.register(TextSpace)
def _same_space(space: TextSpace) -> TextSpace:
    """A text stays a text, as a graph stays a graph: it has no flat array form."""
    return space


@flatten.register(TextSpace)
@unflatten.register(TextSpace)
def _same_text(space: TextSpace, x: str) -> str:  # type: ignore[misc]
    return x


@create_shared_memory.register(TextSpace)
def _refuse_shared_memory(space: TextSpace, n: int = 1, ctx: Any = None) -> None:
    raise CustomSpaceError("TextSpace has no shared-memory form; pass shared_memory=False")
