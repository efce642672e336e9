"""Counters that add up over processes, and their page for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

BUCKETS_S: Final = tuple(2**i * 1e-6 for i in range(27))
"""Upper bounds of the step latency histogram, 1 microsecond to 67 seconds; a last bucket is above.

Powers of two: a step finds its bucket by the length of a number, which costs next to nothing.
"""
_LAST_BUCKET = len(BUCKETS_S)


class Figures(Struct):
    """Counts of one process."""

    sessions: int = 0
    """Open now."""
    created: int = 0
    """Opened so far."""
    reaped: int = 0
    """Sessions that expired."""
    restarts: int = 0
    """World processes that were killed or died, and were started again."""
    steps: int = 0
    """Steps the environments took; a repeated turn is not one."""
    step_seconds: float = 0.0
    step_buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """Steps by latency: bucket i counts those from bound i-1 to below bound i."""
    requests: dict[str, int] = field(default_factory=dict)
    """Calls by route."""
    items: dict[str, int] = field(default_factory=dict)
    """Items answered by route."""
    errors: dict[str, int] = field(default_factory=dict)
    """Failed calls and items by code."""
    env_errors: dict[str, int] = field(default_factory=dict)
    """Errors of services that environments use, which the policy was shown, by name."""

    def count_steps(self, seconds: Sequence[float]) -> None:
        """Environments took steps, which took so many seconds each."""
        self.steps += len(seconds)
        self.step_seconds += sum(seconds)
        buckets = self.step_buckets
        for one in seconds:
            bucket = int(one * 1e6).bit_length()
            buckets[bucket if bucket < _LAST_BUCKET else _LAST_BUCKET] += 1

    def __add__(self, other: Figures) -> Figures:
        """The counts of two processes together."""
        return Figures(*(_sum(getattr(self, f), getattr(other, f)) for f in self.__struct_fields__))


def count(counts: dict[str, int], name: str, by: int = 1) -> None:
    """Add to one of a mapping's counts."""
    counts[name] = counts.get(name, 0) + by


def page(figures: Figures) -> str:
    """Every figure in Prometheus's text format."""
    lines: list[str] = []

    def add(name: str, kind: str, text: str, samples: Mapping[str, float]) -> None:
        lines.append(f"# HELP agentgym_{name} {text}")
        lines.append(f"# TYPE agentgym_{name} {kind}")
        lines.extend(f"agentgym_{name}{label} {value}" for label, value in samples.items())

    add("sessions", "gauge", "Sessions open now.", {"": figures.sessions})
    add("sessions_created_total", "counter", "Sessions opened.", {"": figures.created})
    add("sessions_reaped_total", "counter", "Sessions ended as idle.", {"": figures.reaped})
    add("restarts_total", "counter", "World processes started again.", {"": figures.restarts})
    add("steps_total", "counter", "Steps the environments took.", {"": figures.steps})
    add("step_seconds", "histogram", "Time an environment took for a step.", _histogram(figures))
    add("requests_total", "counter", "Calls, by route.", _labelled("route", figures.requests))
    add("items_total", "counter", "Items answered, by route.", _labelled("route", figures.items))
    add(
        "errors_total", "counter", "Failed calls and items, by code.",
        _labelled("code", figures.errors),
    )  # fmt: skip
    add(
        "env_errors_total", "counter", "Errors of services that environments use, by name.",
        _labelled("name", figures.env_errors),
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def _histogram(figures: Figures) -> dict[str, float]:
    """Prometheus's buckets are cumulative."""
    samples: dict[str, float] = {}
    below = 0
    for bound, steps in zip((*BUCKETS_S, None), figures.step_buckets, strict=True):
        below += steps
        samples[f'_bucket{{le="{"+Inf" if bound is None else f"{bound:g}"}"}}'] = below
    return {**samples, "_sum": figures.step_seconds, "_count": figures.steps}


def _labelled(label: str, counts: Mapping[str, int]) -> dict[str, float]:
    return {f'{{{label}="{name}"}}': counts[name] for name in sorted(counts)}


def _sum(a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}
    if isinstance(a, list):
        return [x + y for x, y in zip(a, b, strict=True)]
    return a + b
