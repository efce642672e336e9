"""Scripts that do some of MiniWoB++'s tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

Script: TypeAlias = Callable[[str, Callable[[], str]], Iterator[str]]
"""A task's sentence and its tree whenever it is asked for -> one call a turn."""

EXPERTS: Final[Mapping[str, Script]] = {}
