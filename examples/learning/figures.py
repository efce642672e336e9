"""What a comparison shows: means over seeds, their errors, a table, Markdown, JSON and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

HOW = (
    "Differences are taken seed by seed, each run against the control of its seed. Intervals are "
    "95 % t-intervals over the seeds."
)
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantile 0.975 of the t distribution with 1 to 9 degrees of freedom."""
SMOOTHED_OVER = 5
"""Steps of the plot's moving average."""


@dataclass(frozen=True, slots=True)
class Row:
    """One arm over its seeds."""

    arm: str
    success: list[float]
    """Final success of each seed."""
    mean: float
    error: float
    """Half of the 95 % interval of the mean over seeds."""
    difference: float
    """Mean over seeds of success minus the control's."""
    difference_error: float
    """Half of its 95 % interval."""
    reward: float
    """Of the evaluation's episodes: what is trained for, even where success is not all of it."""
    episodes: int
    lost: int
    steps: float
    env_steps: float
    """Of one run, the mean over seeds."""
    minutes: float
    """Of training, all seeds together."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The arms of a comparison, the control first."""

    rows: list[Row]
    results: Mapping[str, Sequence[dict[str, Any]]]
    """Arm -> what each seed's run has kept."""
    horizon: int
    """Of all evaluations."""

    @classmethod
    def from_results(cls, kept: Sequence[dict[str, Any]], control: str) -> Comparison:
        """The comparison of kept results."""
        results: dict[str, list[dict[str, Any]]] = {}
        for result in kept:
            results.setdefault(result["arm"], []).append(result)
        rows = [row_of(name, results[name], results[control]) for name in results]
        return cls(rows, results, kept[0]["evaluation"]["horizon"])

    def table(self) -> Table:
        """For the screen."""
        table = Table(title=f"Final success at horizon {self.horizon}, held-out tasks")
        names, lines = self._cells()
        for number, name in enumerate(names):
            table.add_column(name, justify="right" if number else "left")
        for line in lines:
            table.add_row(*line)
        return table

    def write(self, out: Path, command: str, *, curves: bool) -> list[Path]:
        """Markdown, JSON and plot; where they are.

        The plot is of rewards over the steps if `curves`, which means something where all arms
        have one horizon, and else of the seeds' final success.
        """
        names, lines = self._cells()
        head = ["|".join(["", *names, ""]), "|".join(["", "---", *["---:"] * (len(names) - 1), ""])]
        text = "\n".join([*head, *("|".join(["", *line, ""]) for line in lines)])
        markdown, figures, picture = (out / f"results.{kind}" for kind in ("md", "json", "png"))
        markdown.write_text(f"{text}\n\n{HOW}\n\n```\n{command}\n```\n", encoding="utf-8")
        values = {"command": command, "how": HOW, "rows": [asdict(row) for row in self.rows]}
        figures.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        self._plot(picture, curves)
        return [markdown, figures, picture]

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        names = ["", "seeds", "success", "above the control"]
        names += ["reward", "steps", "env steps", "minutes"]
        lines = []
        for row in self.rows:
            is_control = row is self.rows[0]
            above = f"{row.difference:+.3f} ± {row.difference_error:.3f}"
            lines.append(
                [
                    f"{row.arm} (lr 0)" if is_control else row.arm,
                    " ".join(f"{value:.3f}" for value in row.success),
                    f"{row.mean:.3f} ± {row.error:.3f}",
                    "" if is_control else above,
                    f"{row.reward:.2f}",
                    f"{row.steps:.0f}",
                    f"{row.env_steps:,.0f}",
                    f"{row.minutes:.1f}",
                ]
            )
        return names, lines

    def _plot(self, path: Path, curves: bool) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt

        figure, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
        (self._curves if curves else self._final)(axis)
        low, high = axis.get_ylim()
        # Success, and where a world pays no more and no less, reward, are read against 0 and 1.
        if not curves or (low >= -0.1 and high <= 1.1):
            axis.set_ylim(-0.02, 1.02)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
        seeds = len(self.rows[0].success)
        axis.set_title(f"{seeds} seeds, {self._title(curves)}", loc="left")
        figure.savefig(path, dpi=130)
        plt.close(figure)

    def _title(self, curves: bool) -> str:
        if curves:
            return f"mean over {SMOOTHED_OVER} steps, horizon {self.horizon} throughout"
        return f"held-out tasks, horizon {self.horizon} for all"

    def _curves(self, axis: Any) -> None:
        """Reward over the steps: each seed's faint, the mean strong, the control's level."""
        for number, row in enumerate(self.rows):
            runs = [result["rewards"] for result in self.results[row.arm]]
            if not number:
                level = fmean(reward for rewards in runs for reward in rewards)
                axis.axhline(level, color="#30343f", linestyle="--", label=f"{row.arm} (lr 0)")
                continue
            color = f"C{number - 1}"
            for rewards in runs:
                axis.plot(range(1, len(rewards) + 1), smooth(rewards), color, alpha=0.2, lw=1)
            means = [fmean(at) for at in zip(*runs, strict=True)]
            axis.plot(range(1, len(means) + 1), smooth(means), color, lw=2, label=row.arm)
        axis.set_xlabel("optimizer step")
        axis.set_ylabel("reward of the step's episodes")
        axis.legend(loc="lower right", frameon=False, ncols=2)

    def _final(self, axis: Any) -> None:
        """Each seed's final success, and the mean with its interval."""
        for place, row in enumerate(self.rows):
            axis.plot([place] * len(row.success), row.success, "o", color="C0", alpha=0.4)
            axis.errorbar(place + 0.12, row.mean, row.error, fmt="s", color="#30343f", capsize=4)
        axis.set_xticks(range(len(self.rows)), [row.arm for row in self.rows])
        axis.set_ylabel("final success")


def row_of(name: str, runs: list[dict[str, Any]], controls: list[dict[str, Any]]) -> Row:
    """The figures of one arm."""
    success = [run["success"] for run in runs]
    differences = [run["success"] - c["success"] for run, c in zip(runs, controls, strict=True)]
    return Row(
        arm=name,
        success=success,
        mean=fmean(success),
        error=interval(success),
        difference=fmean(differences),
        difference_error=interval(differences),
        reward=fmean(run["evaluation"]["reward"] for run in runs),
        episodes=sum(run["episodes"] for run in runs),
        lost=sum(run["lost"] for run in runs),
        steps=fmean(run["steps"] for run in runs),
        env_steps=fmean(run["env_steps"] for run in runs),
        minutes=sum(run["train_seconds"] for run in runs) / 60,
    )


def interval(values: Sequence[float]) -> float:
    """Half of the 95 % t-interval of the mean; 0 for a single value, which has none."""
    count = len(values)
    return T95[count - 2] * stdev(values) / sqrt(count) if count > 1 else 0.0


def smooth(values: Sequence[float]) -> list[float]:
    """The moving average over the last steps."""
    return [fmean(values[max(0, end - SMOOTHED_OVER) : end]) for end in range(1, len(values) + 1)]
