"""Records by name that expire together with their sessions; knows nothing about sessions."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class IdleRecords(Generic[R]):
    """At most `max_records` records; one that is not used for `ttl_s` seconds is dropped."""

    def __init__(
        self, ttl_s: float, max_records: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl_s = ttl_s
        self._most = max_records
        self._clock = clock
        self._records: OrderedDict[str, tuple[float, R]] = OrderedDict()

    def __len__(self) -> int:
        self._drop_idle()
        return len(self._records)

    def put(self, name: str, record: R) -> None:
        """Add a record; drops the least recently used one if there are too many."""
        self._drop_idle()
        self._records[name] = (self._clock(), record)
        self._records.move_to_end(name)
        while len(self._records) > self._most:
            self._records.popitem(last=False)

    def get(self, name: str) -> R | None:
        """The record of a name, which counts as a use."""
        self._drop_idle()
        if name not in self._records:
            return None
        _, record = self._records[name]
        self._records[name] = (self._clock(), record)
        self._records.move_to_end(name)
        return record

    def pop(self, name: str) -> R | None:
        """Drop a record."""
        _, record = self._records.pop(name, (0.0, None))
        return record

    def _drop_idle(self) -> None:
        oldest_allowed = self._clock() - self._ttl_s
        while self._records and next(iter(self._records.values()))[0] <= oldest_allowed:
            self._records.popitem(last=False)
