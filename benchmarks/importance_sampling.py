"""What rules against the drift between engine and trainer do to episodes of different lengths.

`python benchmarks/importance_sampling.py --figure docs/images/importance_sampling.png`

Each token's log ratio is drawn from a normal distribution of standard deviation `drift`, with the
mean that makes the ratio 1 on average. This is noise of kernels and precision; the policies are
the same. A rule should then treat all episodes alike, whatever their length.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from agentgym_train.training.advantages import ImportanceSampling

LENGTHS = (200, 500, 1000, 2000, 5000)
DRIFTS = (0.01, 0.03, 0.05)
EPISODES = 2000


def ours(kind: str) -> Callable[[Tensor], Tensor]:
    """The weights of one of our rules."""

    def weights(drift: Tensor) -> Tensor:
        mask = torch.ones_like(drift, dtype=torch.bool)
        return ImportanceSampling(kind).ratios(drift, torch.zeros_like(drift), mask)  # type: ignore[arg-type]

    return weights


def product(drift: Tensor) -> Tensor:
    """TRL's default, `sequence_mask` with a cap of 3: the product, or nothing above the cap."""
    total = drift.sum(1, keepdim=True).exp()
    return (total * (total <= 3)).expand_as(drift)


def band(drift: Tensor) -> Tensor:
    """The former `sequence` here: the product, and nothing outside 1/3 to 3."""
    total = drift.sum(1, keepdim=True)
    return (total.exp() * (total.abs() <= math.log(3))).expand_as(drift)


def token_band(drift: Tensor) -> Tensor:
    """IcePop (in NeMo-RL and prime-rl): the ratio, and nothing outside 0.5 to 5, per token."""
    ratio = drift.exp()
    return ratio * ((ratio >= 0.5) & (ratio <= 5))


RULES = {
    "token": ours("token"),
    "geometric": ours("geometric"),
    "token band (IcePop)": token_band,
    "product, masked above 3 (TRL)": product,
    "product, masked outside 1/3 to 3": band,
}


def main() -> None:
    """Print the table, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    table = Table("rule", "drift", *(f"{length:,} tokens" for length in LENGTHS))
    excluded: dict[tuple[str, float], list[float]] = {}
    for name, rule in RULES.items():
        for drift in DRIFTS:
            cells = []
            for length in LENGTHS:
                generator = torch.Generator().manual_seed(length)
                draws = torch.randn((EPISODES, length), generator=generator)
                weights = rule(draws * drift - drift**2 / 2).double()
                share = float((weights.sum(1) == 0).double().mean())
                effective = float(weights.sum() ** 2 / weights.square().sum() / weights.numel())
                excluded.setdefault((name, drift), []).append(share)
                cells.append(f"{share:.3f} / {effective:.2f}")
            table.add_row(name, f"{drift:g}", *cells)
    Console(width=140).print(table)
    if options.figure:
        draw(excluded, options.figure)


def draw(excluded: dict[tuple[str, float], list[float]], path: Path) -> None:
    """The share of excluded episodes by length."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(DRIFTS), figsize=(10, 3), sharey=True)
    for axis, drift in zip(axes, DRIFTS, strict=True):
        for number, name in enumerate(RULES):
            style = "-" if number < 3 else "--"
            axis.plot(LENGTHS, excluded[name, drift], style, marker="o", ms=3, label=name)
        axis.set_title(f"drift {drift:g} per token", fontsize=10)
        axis.set_xlabel("sampled tokens of an episode")
    axes[0].set_ylabel("excluded episodes")
    axes[0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
