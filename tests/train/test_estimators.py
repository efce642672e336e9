"""avg@k, pass@k, intervals and the paired test, each against a slow reference of another kind."""

from __future__ import annotations

import itertools
import math
import random
from statistics import fmean

import numpy as np
import pytest

from agentgym_train.evaluation.statistics import (
    FLIPS,
    RESAMPLES,
    bootstrap_interval,
    compare_values,
    holm,
    mean_of_means,
    pass_at_k,
    rate_interval,
)


def draw_tasks(seed, tasks, samples, sure=None):
    """Bernoulli results of tasks that differ in difficulty; `sure` is a task's own rate."""
    draws = random.Random(seed)
    rates = [draws.random() if sure is None else sure for _ in range(tasks)]
    return [[float(draws.random() < rate) for _ in range(samples)] for rate in rates]


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_all_draws_of_k_samples_that_hold_a_success(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        results = [True] * c + [False] * (n - c)
        every = [any(drawn) for drawn in itertools.combinations(results, k)]
        assert pass_at_k(n, c, k) == pytest.approx(fmean(every), abs=1e-12)


def test_pass_at_k_is_unbiased_where_one_minus_failure_to_the_k_is_not():
    rate, n, k = 0.3, 5, 3
    weights = [math.comb(n, c) * rate**c * (1 - rate) ** (n - c) for c in range(n + 1)]
    expected = sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights))
    assert expected == pytest.approx(1 - (1 - rate) ** k)
    naive = sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights))
    assert naive < expected - 0.05
    assert pass_at_k(1000, 10, 100) == pytest.approx(0.6531, abs=1e-4)  # no overflow
    for wrong in ((3, 1, 0), (3, 1, 4), (3, 4, 1)):
        with pytest.raises(ValueError):
            pass_at_k(*wrong)


def test_avg_at_k_weighs_tasks_and_not_samples():
    assert mean_of_means([[1.0, 0.0], [1.0]]) == 0.75


def test_the_interval_is_that_of_a_bootstrap_written_out():
    values = [*draw_tasks(1, 29, 4), [1.0]]
    picks = np.random.default_rng(5).integers(len(values), size=(RESAMPLES, len(values)))
    means = []
    for pick in picks.tolist():
        drawn = [value for task in pick for value in values[task]]
        means.append(sum(drawn) / len(drawn))
    means.sort()

    def quantile(share):
        place = share * (len(means) - 1)
        low = int(place)
        return means[low] + (place - low) * (means[low + 1] - means[low])

    assert bootstrap_interval(values, 5) == pytest.approx((quantile(0.025), quantile(0.975)))
    assert bootstrap_interval(values, 5) == bootstrap_interval(values, 5)
    assert bootstrap_interval([[1.0, 0.0, 1.0]], 0) is None


def test_the_interval_of_few_tasks_is_near_that_of_all_resamples_there_are():
    values = [[0.0], [1.0], [1.0], [0.25], [0.5]]
    every = [fmean(values[i][0] for i in pick) for pick in itertools.product(range(5), repeat=5)]
    low, high = np.quantile(every, [0.025, 0.975])
    assert bootstrap_interval(values, 0) == pytest.approx((low, high), abs=0.051)


def test_samples_of_one_task_do_not_narrow_the_interval_but_tasks_do():
    values = [[float(n % 2)] for n in range(20)]
    same = bootstrap_interval([task * 50 for task in values], 0)
    assert same == pytest.approx(bootstrap_interval(values, 0))
    low, high = bootstrap_interval(values * 20, 0)
    assert high - low < 0.3 * (same[1] - same[0])


def test_intervals_hold_the_truth_as_often_as_they_say():
    held = 0
    for seed in range(300):
        low, high = bootstrap_interval(draw_tasks(seed, 60, 2), seed)
        held += low <= 0.5 <= high
    assert 0.91 <= held / 300 <= 0.98


def test_tasks_that_all_agree_have_the_exact_limits_of_a_binomial():
    low, high = rate_interval([[1.0, 1.0]] * 30, 0)
    assert high == 1.0
    assert low**30 == pytest.approx(0.025)  # so seldom all 30 succeed at that rate
    none = rate_interval([[0.0]] * 30, 0)
    assert none == pytest.approx((0.0, 1 - low))
    mixed = draw_tasks(2, 30, 2)
    assert rate_interval(mixed, 3) == bootstrap_interval(mixed, 3)
    assert rate_interval([[1.0]], 0) is None


def test_p_is_the_share_of_all_signs_that_are_as_extreme():
    first, second = draw_tasks(3, 9, 3), draw_tasks(4, 9, 3)
    differences = [fmean(a) - fmean(b) for a, b in zip(first, second, strict=True)]
    observed = abs(sum(differences))
    every = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed - 1e-12
        for signs in itertools.product((-1, 1), repeat=9)
    ]
    found = compare_values(first, second, 0)
    assert found.p == pytest.approx(fmean(every))
    assert found.effect == pytest.approx(fmean(differences))
    assert (found.better, found.worse) == (
        sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    )  # fmt: skip
    assert compare_values(second, first, 0).p == found.p
    assert compare_values(second, first, 0).effect == pytest.approx(-found.effect)


def test_random_signs_come_near_to_all_of_them_and_p_is_never_zero():
    moved = [[1.0]] * 6 + [[0.0]] * 10  # 2^16 patterns are more than FLIPS
    still = [[0.0]] * 6 + [[1.0]] * 10
    exact = 2 * sum(math.comb(16, n) for n in range(7)) / 2**16
    assert compare_values(moved, still, 0).p == pytest.approx(exact, abs=0.015)
    assert compare_values([[1.0]] * 200, [[0.0]] * 200, 0).p == 1 / (FLIPS + 1)
    assert compare_values([[1.0]] * 5, [[1.0]] * 5, 0).p == 1.0


def test_of_policies_that_do_not_differ_one_in_twenty_is_called_different_at_most():
    called = 0
    for seed in range(400):
        draws = random.Random(seed)
        rates = [draws.random() for _ in range(40)]
        one, other = (
            [[float(draws.random() < rate) for _ in range(2)] for rate in rates] for _ in range(2)
        )
        called += compare_values(one, other, seed).p < 0.05
    assert 0.015 <= called / 400 <= 0.075


def test_of_policies_that_differ_by_a_fifth_nearly_all_are_found():
    found = 0
    for seed in range(50):
        result = compare_values(
            draw_tasks(seed, 100, 2, 0.6), draw_tasks(seed + 999, 100, 2, 0.4), seed
        )
        found += result.p < 0.05
        assert result.interval[0] < result.effect < result.interval[1]
    assert found >= 45


def test_fifty_thousand_tasks_need_no_gigabyte():
    import tracemalloc

    values = draw_tasks(0, 50_000, 1)
    tracemalloc.start()
    compare_values(values[:20_000], values[20_000:40_000], 0)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 300e6


def test_holm_is_worked_out_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
