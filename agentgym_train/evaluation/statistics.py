"""Estimates, intervals and paired tests of values by task; knows nothing about episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 2000
"""Of a bootstrap."""

FLIPS: Final = 10_000
"""Maximum number of sign patterns of a permutation test."""

_CHUNK: Final = 2_000_000
"""Numbers drawn per chunk, which limits the memory for many tasks."""

Interval = tuple[float, float]

Bar = tuple[float, Interval | None]
"""A value and its interval, as a chart shows them."""

Values = Sequence[Sequence[float]]
"""For each task, one value per sample; a task has at least one."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policy A against policy B on the same tasks: `effect` is A's mean less B's."""

    effect: float
    interval: Interval | None
    """95 % interval of the effect, resampling tasks; None for a single task."""
    p: float
    """Two-sided p-value under the hypothesis that the two do not differ."""
    tasks: int
    better: int
    """Tasks on which A's mean is above B's."""
    worse: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that one of `k` samples succeeds, if `c` of `n` did; 1 <= k <= n.

    Unbiased: 1 - C(n-c, k) / C(n, k) (Chen et al., arXiv:2107.03374, equation 1).
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@k requires 1 <= k <= n and 0 <= c <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_of_means(values: Values) -> float:
    """The mean over tasks of each task's mean; for successes this is avg@k."""
    return float(np.mean([np.mean(task) for task in values]))


def bootstrap_interval(values: Values, seed: int) -> Interval | None:
    """95 % interval of the mean of all values, resampling tasks (percentile bootstrap, Efron 1979).

    None for fewer than two tasks, which do not show how tasks vary.
    """
    if len(values) < 2:
        return None
    sums = np.array([math.fsum(task) for task in values])  # (tasks,)
    counts = np.array([len(task) for task in values])  # (tasks,)
    rates = [sums[draw].sum(1) / counts[draw].sum(1) for draw in _draws(len(values), seed)]
    low, high = np.quantile(np.concatenate(rates), [0.025, 0.975])
    return float(low), float(high)


def rate_interval(values: Values, seed: int) -> Interval | None:
    """`bootstrap_interval` of values from 0 to 1, with a width if all of them are 0 or all 1.

    Every resample is the same in that case; the limit is then the exact one of a binomial with as
    many tasks (Clopper and Pearson 1934), as if each had a single sample.
    """
    each = {value for task in values for value in task}
    if len(values) < 2 or each not in ({0.0}, {1.0}):
        return bootstrap_interval(values, seed)
    reach = 0.025 ** (1 / len(values))
    return (reach, 1.0) if each == {1.0} else (0.0, 1.0 - reach)


def compare_values(first: Values, second: Values, seed: int) -> Comparison:
    """A paired comparison: `first[i]` and `second[i]` are of the same task.

    The p-value is that of a permutation test: if the policies do not differ, the sign of a task's
    difference is random, so signs are drawn again for all tasks (Fisher 1935; for such tables,
    Smucker, Allan and Carterette 2007). All 2^m sign patterns are counted if there are at most
    `FLIPS`, otherwise so many random ones, including the observed one (Phipson and Smyth 2010): p
    is never 0.
    """
    if len(first) != len(second) or not first:
        raise ValueError(
            f"the same number of tasks is required, at least one: {len(first)} and {len(second)}"
        )
    differences = np.array(
        [np.mean(a) - np.mean(b) for a, b in zip(first, second, strict=True)]
    )  # (tasks,)
    return Comparison(
        effect=float(differences.mean()),
        interval=bootstrap_interval(differences[:, None].tolist(), seed),
        p=_sign_flip_p(differences, seed),
        tasks=len(differences),
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """The corrected p-values of several comparisons, so that one below 0.05 is significant.

    Step-down (Holm 1979): the probability of any false claim among them stays below 0.05.
    """
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        reached = max(reached, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = reached
    return adjusted


def _sign_flip_p(differences: NDArray[np.float64], seed: int) -> float:
    moved = differences[differences != 0]  # (m,); a task without a difference has no sign
    if not len(moved):
        return 1.0
    # Sums that differ only by rounding count as equally extreme.
    observed = abs(moved.sum()) - 1e-9 * np.abs(moved).sum()
    if 2 ** len(moved) <= FLIPS:
        patterns = np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1  # (2^m, m)
        return float(np.mean(np.abs((2 * patterns - 1) @ moved) >= observed))
    generator = np.random.default_rng(seed)
    extreme = 0
    for rows in _chunks(FLIPS, len(moved)):
        signs = 2 * generator.integers(2, size=(rows, len(moved))) - 1  # (rows, m)
        extreme += int((np.abs(signs @ moved) >= observed).sum())
    return (extreme + 1) / (FLIPS + 1)


def _draws(tasks: int, seed: int) -> Iterator[NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    for rows in _chunks(RESAMPLES, tasks):
        yield generator.integers(tasks, size=(rows, tasks))  # (rows, tasks)


def _chunks(rows: int, width: int) -> list[int]:
    most = max(1, _CHUNK // width)
    return [min(most, rows - start) for start in range(0, rows, most)]
