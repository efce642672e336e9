"""The tables of the study, from the results of its runs; knows nothing about training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.several_worlds.setting import JOINT, LARGE, START, WORLDS

Result = Mapping[str, Any]
MARGIN = 0.05
"""The joint policy may be so far below a specialist."""
RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """Success of one arm less that of another in a world, over the seeds that both have."""

    mean: float
    low: float
    high: float
    """95 % bootstrap interval over seeds and tasks."""
    by_seed: tuple[float, ...]


def success(results: Sequence[Result], arm: str, world: str) -> dict[int, NDArray[np.float64]]:
    """Seed -> (tasks,) success of an arm in a world, task by task."""
    return {
        result["seed"]: np.array(result["evaluations"][world]["by_task"], dtype=np.float64)
        for result in results
        if result["arm"] == arm and world in result["evaluations"]
    }


def difference(results: Sequence[Result], first: str, second: str, world: str) -> Difference | None:
    """Compare two arms, paired by seed and task; None without a common seed.

    Seeds and tasks are resampled independently, since all seeds have the same tasks.
    """
    ours, theirs = (success(results, arm, world) for arm in (first, second))
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = np.stack([ours[seed] - theirs[seed] for seed in seeds])  # (seeds, tasks)
    generator = np.random.default_rng(0)
    rows, tasks = differences.shape
    means = np.empty(RESAMPLES)
    for number in range(RESAMPLES):
        drawn = differences[generator.integers(rows, size=rows)].mean(0)  # (tasks,)
        means[number] = drawn[generator.integers(tasks, size=tasks)].mean()
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(
        float(differences.mean()), float(low), float(high), tuple(differences.mean(1).tolist())
    )


def markdown(results: Sequence[Result]) -> list[str]:
    """The tables, line by line."""
    large = any(result["arm"].endswith(LARGE) for result in results)
    return [
        *success_table(results),
        "",
        *(["Specialists with three times the groups per step:", ""] if large else []),
        *(success_table(results, LARGE) if large else []),
        *([""] if large else []),
        *difference_table(results),
        "",
        *cost_table(results),
    ]


def success_table(results: Sequence[Result], suffix: str = "") -> Iterator[str]:
    """Success of the arms, and the difference that the study is about.

    `suffix` chooses among specialists.
    """
    yield "| world | start | specialist | joint | joint - specialist | 95 % interval | by seed | |"
    yield "|---|---:|---:|---:|---:|---|---|---|"
    for world in WORLDS:
        means = (_mean(results, arm, world) for arm in (START, world + suffix, JOINT))
        found = difference(results, JOINT, world + suffix, world)
        cells = ["", "", "", ""]
        if found is not None:
            within = found.mean >= -MARGIN
            cells = [*_cells(found), f"{'within' if within else 'not within'} {MARGIN}"]
        yield _row([world, *means, *cells])


def difference_table(results: Sequence[Result]) -> Iterator[str]:
    """What training has changed."""
    yield "| world | arm | gain over the start | 95 % interval | by seed |"
    yield "|---|---|---:|---|---|"
    for world in WORLDS:
        arms = ((world, "specialist"), (world + LARGE, "specialist x3"), (JOINT, JOINT))
        for arm, name in arms:
            found = difference(results, arm, START, world)
            if found is not None:
                yield _row([world, name, *_cells(found)])


def cost_table(results: Sequence[Result]) -> Iterator[str]:
    """What the runs have used, as means over seeds."""
    yield "| arm | runs | optimizer steps | environment steps | sampled tokens | seconds |"
    yield "|---|---:|---:|---:|---:|---:|"
    keys = ("steps", "env_steps", "sampled_tokens", "train_seconds")
    for arm in (JOINT, *WORLDS, *(world + LARGE for world in WORLDS)):
        own = [result for result in results if result["arm"] == arm]
        if own:
            means = [f"{np.mean([result[key] for result in own]):,.0f}" for key in keys]
            yield _row([arm, str(len(own)), *means])


def _mean(results: Sequence[Result], arm: str, world: str) -> str:
    found = success(results, arm, world)
    return f"{np.mean([values.mean() for values in found.values()]):.3f}" if found else ""


def _cells(found: Difference) -> list[str]:
    by_seed = ", ".join(f"{value:+.3f}" for value in found.by_seed)
    return [f"{found.mean:+.3f}", f"{found.low:+.3f} to {found.high:+.3f}", by_seed]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
