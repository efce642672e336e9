"""How much the updates of the algorithms differ, on one rollout and from the same weights.

    python benchmarks/algorithm_differences.py

The rollout is the quickstart's policy on 16 tasks of TextCraft, 8 episodes each. Every algorithm
updates that policy by plain gradient descent, with its own loss and advantages. The displacements
of the weights are scaled to the same length; a number is the length of their difference, from 0
(the same direction) to 2 (opposite). Below the diagonal the rollout is one mini-batch, above it
four. The last two columns are the lengths of the displacements, in units of grpo's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from agentgym_env.run_store import RunStore
from agentgym_train.algorithms import ALGORITHMS
from agentgym_train.config.rl import RLConfig
from agentgym_train.rollout.buffer import GroupBatch
from agentgym_train.rollout.groups import Group
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.worlds import open_worlds
from agentgym_train.training.rl import RLTrainer

VARIANTS = {name: (name, {}) for name in ALGORITHMS} | {
    "grpo, sequence": ("grpo", {"average": "sequence"})
}
"""Name in the table -> algorithm and its arguments."""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = RLConfig(
        model="starter:textcraft/warm_policy", env="agentgym/TextCraft-v0", output_dir="unused",
        horizon=[8], instruction="", turn_max_tokens=32, max_tokens=1024, prompts_per_step=16,
        num_generations=8, steps=1, seed=args.seed, learning_rate=args.learning_rate,
        trainer_args={"optim": "sgd", "max_grad_norm": 1e9, "save_strategy": "no"},
    )  # fmt: skip
    rollout: list[Group] = []
    moved = {
        (name, count): displacement(
            replace(
                config,
                algorithm={"type": algorithm, **arguments},
                minibatches_per_rollout=count,
            ),
            rollout,
        )
        for count in (1, args.minibatches)
        for name, (algorithm, arguments) in VARIANTS.items()
    }
    wins = [sum(t.success for t in group.episodes) for group in rollout]
    sys.stdout.write(f"\nsuccesses of the groups: {wins}\n\n")
    sys.stdout.write(table(moved, list(VARIANTS), args.minibatches))


def displacement(config: RLConfig, rollout: list[Group]) -> Tensor:
    """How a step moves the weights; the first call plays the rollout, the others reuse it."""
    policy = make_policy(config)
    before = [weight.detach().clone() for weight in policy.model.parameters()]
    with tempfile.TemporaryDirectory() as folder, open_worlds(config) as worlds:
        trainer = RLTrainer(policy, config, worlds, RunStore.create(Path(folder) / "run", {}))
        take = trainer.rollouts.take

        async def recorded(draws: Sequence[Group], horizons: Sequence[int]) -> GroupBatch:
            if not rollout:
                rollout.extend((await take(draws, horizons)).trained)
            return GroupBatch(list(rollout))

        trainer.rollouts.take = recorded  # type: ignore[method-assign]
        trainer.train()
        after = [weight.detach() for weight in policy.model.parameters()]
    pairs = zip(after, before, strict=True)
    return torch.cat([(new - old).flatten().double() for new, old in pairs])


def table(moved: dict[tuple[str, int], Tensor], names: Sequence[str], several: int) -> str:
    """A Markdown table of the differences and lengths."""
    units = {key: value / value.norm() for key, value in moved.items()}
    lines = [
        ["", *names, "length, 1", f"length, {several}"],
        ["---", *["---:"] * (len(names) + 2)],
    ]
    for row, name in enumerate(names):
        cells = [f"`{name}`"]
        for column, other in enumerate(names):
            count = 1 if column < row else several
            difference = float((units[name, count] - units[other, count]).norm())
            cells.append("" if row == column else f"{difference:.2g}" if difference else "0")
        for count in (1, several):
            length = float(moved[name, count].norm() / moved["grpo", count].norm())
            cells.append(f"{length:.2f}")
        lines.append(cells)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
