"""What the cells show: a summary of all of them, paired tests, tables. PLAN.md is the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from cell import RESULT, digest, read_result
from plan import CONTROL, SCHEDULES
from scipy import stats

from agentgym_env.run_store import RunStore
from agentgym_train.evaluation.statistics import RESAMPLES, compare_values, holm

Kept = Mapping[str, Any]
"""A cell of the summary."""
STAGED_SCHEDULES = ("stepwise", "linear", "adaptive")
FIXED_SCHEDULES = ("short", "medium", "long")
SUMMARY = "summary.json"
FALL = 0.10
"""A run whose success ends so far below its peak has collapsed."""


@dataclass(frozen=True, slots=True)
class Test:
    """One arm against another, the same seeds and tasks."""

    first: str
    second: str
    difference: float
    """Mean over seeds of the difference in success."""
    interval: tuple[float, float] | None
    """95 %, resampling seeds and, within them, tasks; None for a single seed."""
    p: float | None
    """Two-sided paired t-test over seeds; None for a single seed."""
    p_tasks: float | None
    """Two-sided permutation test over tasks, of their means over seeds."""
    seeds: int
    p_holm: float | None = None
    """`p`, corrected for all tests of the family."""


def write(out: Path, command: str) -> list[Path]:
    """Write summary.json, tables.md and the plots of all finished cells; returns their paths."""
    from plots import draw

    cells = [_rounded(cell) for cell in read_cells(out)]
    if not cells:
        return []
    summary = {
        "command": command,
        "hours": round(sum(cell["seconds"] for cell in cells) / 3600, 2),
        "worlds": {name: world_summary(part) for name, part in _by(cells, "world").items()},
        "cells": cells,
    }
    path, tables = out / SUMMARY, out / "tables.md"
    path.write_text(_written(summary), encoding="utf-8")
    tables.write_text("\n".join([*markdown(summary), "", f"```\n{command}\n```"]) + "\n")
    return [path, tables, *draw(out, cells)]


def read_cells(out: Path) -> list[dict[str, Any]]:
    """All finished cells in a folder of the study, in the order of their names.

    Those that only its summary has were run elsewhere.
    """
    cells = {cell["name"]: cell for cell in summarized(out)}
    for path in out.glob(f"*/*/{RESULT}"):
        kept = read_result(path.parent)
        assert kept is not None
        name = f"{path.parts[-3]}/{path.parts[-2]}"
        cells[name] = cell_summary(name, kept)
    return [cells[name] for name in sorted(cells)]


def summarized(out: Path) -> list[dict[str, Any]]:
    """The cells in a folder's summary; none if it has no summary."""
    summary = RunStore(out).read_json(SUMMARY)
    cells: list[dict[str, Any]] = [] if summary is None else summary.get("cells", [])
    return cells


def _written(summary: Mapping[str, Any]) -> str:
    """The summary as JSON, a line for each cell, numbers with five digits."""
    head = {k: v for k, v in summary.items() if k != "cells"}
    text = json.dumps(_rounded(head), indent=1)
    cells = ",\n".join(json.dumps(cell) for cell in summary["cells"])
    return f'{text[:-2]},\n "cells": [\n{cells}\n]\n}}\n'


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value


def cell_summary(name: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """What the summary has of one cell: its labels, final figures, curve and means of training."""
    training, evaluations = kept["training"], kept["evaluations"]
    long = str(max(kept["plan"]["measured"]["horizons"]))
    curve = [row["success"][long] for row in evaluations]
    return {
        "name": name,
        "plan": digest(kept["plan"]),
        **kept["plan"]["labels"],
        "horizons": kept["plan"]["measured"]["horizons"],
        "final": kept["final"],
        "curve": [{k: v for k, v in row.items() if k not in ("by_task",)} for row in evaluations],
        "peak": max(curve),
        "fall": max(curve) - curve[-1],
        "late_change": late_change(curve),
        "steps": len(training["step"]),
        "env_steps": int(sum(training["env_steps"])),
        "sampled_tokens": int(sum(training["sampled_tokens"])),
        "seconds": round(sum(training["seconds"]), 1),
        "means": {
            name: _mean(training[name])
            for name in ("turns", "entropy", "grad_norm", "informative_groups", "reward")
        },
        "training": {name: training[name] for name in training if name not in _TIMES},
    }


_TIMES = ("seconds", "rollout_seconds")


def late_change(curve: Sequence[float]) -> float:
    """The mean of the last two evaluations less that of the two in the middle of the budget."""
    middle = len(curve) // 2
    return fmean(curve[-2:]) - fmean(curve[max(0, middle - 1) : middle + 1])


def world_summary(cells: Sequence[Kept]) -> dict[str, Any]:
    """The answers of the plan for one world, from the cells of part `main`."""
    arms = _by([cell for cell in cells if cell["part"] == "main"], "schedule")
    if not arms:
        return {}
    pairs = [(a, b) for a in STAGED_SCHEDULES for b in ("short", "long") if a in arms and b in arms]
    tokens = equal_tokens([c for name in SCHEDULES for c in arms.get(name, ())])
    described = [("adaptive", b) for b in ("medium", "stepwise", "linear")]
    return {
        "seeds": {name: len(arm) for name, arm in arms.items()},
        "falls": {name: [cell["fall"] for cell in arm] for name, arm in arms.items()},
        "collapsed": {name: sum(c["fall"] >= FALL for c in arm) for name, arm in arms.items()},
        "late_change": {
            name: t_interval([c["late_change"] for c in a]) for name, a in arms.items()
        },
        "equal_env_steps": _corrected(arms, pairs, final_success),
        "equal_tokens": _corrected(arms, pairs, lambda c: tokens[c["name"]], by_task=False),
        "adaptive": [
            asdict(compare(arms[a], arms[b], final_success, names=(a, b)))
            for a, b in described
            if a in arms and b in arms
        ],
    }


def final_success(cell: Kept) -> float:
    """Success after training at the world's long horizon."""
    value: float = cell["final"]["success"][str(max(cell["horizons"]))]
    return value


def equal_tokens(cells: Sequence[Kept]) -> dict[str, float]:
    """Cell -> success at the long horizon after as many sampled tokens as its seed's least run.

    Between two evaluations it is interpolated.
    """
    found = {}
    for group in _by(cells, "seed").values():
        least = min(cell["sampled_tokens"] for cell in group)
        for cell in group:
            long = str(max(cell["horizons"]))
            spent = [row["sampled_tokens"] for row in cell["curve"]]
            success = [row["success"][long] for row in cell["curve"]]
            found[cell["name"]] = float(np.interp(least, spent, success))
    return found


def compare(
    first: Sequence[Kept],
    second: Sequence[Kept],
    value: Callable[[Kept], float],
    *,
    names: tuple[str, str],
    by_task: bool = True,
) -> Test:
    """Compare two arms over the seeds that both have."""
    ours, theirs = ({cell["seed"]: cell for cell in arm} for arm in (first, second))
    seeds = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[seed], theirs[seed]) for seed in seeds]
    differences = [value(a) - value(b) for a, b in pairs]
    if len(seeds) < 2:
        return Test(*names, fmean(differences), None, None, None, len(seeds))
    p = float(stats.ttest_rel([value(a) for a, _ in pairs], [value(b) for _, b in pairs]).pvalue)
    interval, p_tasks = t_interval(differences)[1:], None
    if by_task:
        tasks = [(_tasks(a), _tasks(b)) for a, b in pairs]
        shared = sorted(set.intersection(*(set(a) & set(b) for a, b in tasks)))
        table = np.array([[a[t] - b[t] for t in shared] for a, b in tasks])  # (seeds, tasks)
        interval = nested_interval(table)
        zero = [[0.0]] * len(shared)
        p_tasks = compare_values(table.mean(0)[:, None].tolist(), zero, seed=0).p
    # Seeds without any difference between them have no variance to test against.
    return Test(*names, fmean(differences), interval, 1.0 if isnan(p) else p, p_tasks, len(seeds))


def nested_interval(table: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of a (seeds, tasks) table, resampling seeds, then their tasks."""
    generator = np.random.default_rng(0)
    seeds, tasks = table.shape
    rows = generator.integers(seeds, size=(RESAMPLES, seeds))  # (R, seeds)
    columns = generator.integers(tasks, size=(RESAMPLES, seeds, tasks))  # (R, seeds, tasks)
    means = table[rows[:, :, None], columns].mean((1, 2))  # (R,)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high): the 95 % t-interval of the mean; without width for a single value."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return mean, mean - half, mean + half


def _corrected(
    arms: Mapping[str, Sequence[Kept]],
    pairs: Sequence[tuple[str, str]],
    value: Callable[[Kept], float],
    *,
    by_task: bool = True,
) -> list[dict[str, Any]]:
    """The tests of a family, with Holm's correction; arms that share no seed are left out."""
    tests = [
        compare(arms[a], arms[b], value, names=(a, b), by_task=by_task)
        for a, b in pairs
        if {c["seed"] for c in arms[a]} & {c["seed"] for c in arms[b]}
    ]
    known = [number for number, test in enumerate(tests) if test.p is not None]
    adjusted = dict(zip(known, holm([tests[n].p or 0.0 for n in known]), strict=True))
    return [asdict(test) | {"p_holm": adjusted.get(n)} for n, test in enumerate(tests)]


def markdown(summary: Mapping[str, Any]) -> Iterator[str]:
    """The tables of all parts."""
    yield "# Results of the horizon lab\n"
    yield f"{len(summary['cells'])} cells, {summary['hours']:.1f} hours of training."
    for (part, world), cells in _by(summary["cells"], "part", "world").items():
        yield f"\n## {part}, {world}\n"
        yield from _arms_table(cells)
        if part == "main":
            yield from _tests_table(summary["worlds"][world])


def _arms_table(cells: Sequence[Kept]) -> Iterator[str]:
    horizons = cells[0]["horizons"]
    head = ["arm", "seeds", *(f"success at {h}" for h in horizons), "fall from the peak"]
    head += ["steps", "env steps", "tokens", "entropy", "KL", "invalid", "informative groups"]
    head += ["gradient norm", "turns", "minutes"]
    yield f"| {' | '.join(head)} |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for (tag, algorithm, schedule), arm in _by(cells, "tag", "algorithm", "schedule").items():
        successes = [_shown([c["final"]["success"][str(h)] for c in arm]) for h in horizons]
        row = [" ".join(filter(None, (tag, algorithm.rpartition(":")[2], schedule))), len(arm)]
        row += [*successes, _shown([c["fall"] for c in arm])]
        row += [f"{fmean(c[name] for c in arm):,.0f}" for name in ("steps", "env_steps")]
        row += [f"{fmean(c['sampled_tokens'] for c in arm):,.0f}"]
        row += [f"{_mean([c['final'][n] for c in arm]):.2f}" for n in ("entropy", "kl")]
        row += [f"{100 * _mean([c['final']['invalid_actions'] for c in arm]):.1f} %"]
        row += [f"{_mean([c['means'][n] for c in arm]):.2f}" for n in _SHOWN_MEANS]
        row += [f"{sum(c['seconds'] for c in arm) / 60:.0f}"]
        yield "| " + " | ".join(map(str, row)) + " |"


_SHOWN_MEANS = ("informative_groups", "grad_norm", "turns")


def _tests_table(world: Mapping[str, Any]) -> Iterator[str]:
    if world["equal_env_steps"]:
        yield "\n| at equal | | | difference | p | p (Holm) | p over tasks |"
        yield "|---|---|---|---:|---:|---:|---:|"
    for name in ("equal_env_steps", "equal_tokens", "adaptive"):
        for test in world[name]:
            ps = (test["p"], test["p_holm"], test["p_tasks"])
            cells = ["" if p is None else f"{p:.3g}" for p in ps]
            yield (
                f"| {name.removeprefix('equal_').replace('_', ' ')} | {test['first']} | "
                f"{test['second']} | {_changed(test['difference'], test['interval'])} | "
                f"{' | '.join(cells)} |"
            )
    falls = ", ".join(
        f"{name} {world['collapsed'][name]} of {count}" for name, count in world["seeds"].items()
    )
    yield f"\nRuns that end at least {FALL:.2f} below their peak: {falls}.\n"
    changes = (
        f"{name} {_changed(mean, limits if world['seeds'][name] > 1 else None)}"
        for name, (mean, *limits) in world["late_change"].items()
    )
    yield f"Late change: {', '.join(changes)}."


def _shown(values: Sequence[float]) -> str:
    """The mean with its 95 % t-interval, which a single value has not."""
    mean, low, _ = t_interval(values)
    return f"{mean:.3f} ± {mean - low:.3f}" if len(values) > 1 else f"{mean:.3f}"


def _changed(difference: float, limits: Sequence[float] | None) -> str:
    text = f"{difference:+.3f}"
    return f"{text} ({limits[0]:+.3f} to {limits[1]:+.3f})" if limits else text


def _tasks(cell: Kept) -> Mapping[str, float]:
    tasks: Mapping[str, float] = cell["final"]["by_task"][str(max(cell["horizons"]))]
    return tasks


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else float("nan")


def _by(cells: Sequence[Kept], *names: str) -> dict[Any, list[Kept]]:
    """The cells by a label, or by several; in the plan's order of schedules."""
    order = (*SCHEDULES, CONTROL)
    ordered = sorted(cells, key=lambda c: order.index(c["schedule"]))
    found: dict[Any, list[Kept]] = {}
    for cell in sorted(ordered, key=lambda c: (c["part"], c["world"])):
        key = tuple(cell[name] for name in names)
        found.setdefault(key if len(names) > 1 else key[0], []).append(cell)
    return found
