"""One step of plain gradient descent for several losses, on as many processes as it is started on.

Run by test_update_distributed: `python -m torch.distributed.run --nproc_per_node N THIS OUT`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from agentgym_train.algorithms import LossSettings
from agentgym_train.algorithms.gae import PPO
from agentgym_train.training.critic import Critic
from agentgym_train.training.rows import TokenRows
from tests.train.ragged_rows import episodes, llama, make_ours, rows_to_train, step_inputs

LOSSES = {
    "token": (LossSettings(), {}),
    "sequence": (LossSettings(mean="sequence"), {"beta": 0.1}),
    "constant": (LossSettings(mean="constant"), {}),
    "entropy bonus": (LossSettings(), {"entropy_bonus": 0.01}),
}
BUDGETS = (10_000, 110, 60)
# Those of the second half are much longer.
EPISODES = [*episodes(4, seed=0, max_turns=3), *episodes(4, seed=1, max_turns=12)]


def own_rows(
    loss: LossSettings, processes: int, rank: int, chosen: Sequence[int] = range(8)
) -> TokenRows:
    """This process's part of the step's rows; the weights are of all."""
    rows = rows_to_train(step_inputs(EPISODES), loss)
    size = len(chosen) // processes
    return rows.take(chosen[rank * size : (rank + 1) * size])


def step(
    name: str, processes: int, rank: int, budget: int
) -> tuple[dict[str, Any], list[int], dict[str, float]]:
    """(the weights after the step, rows of each pass of this process, the step's metrics)."""
    loss, more = LOSSES[name]
    trainer = make_ours(
        tempfile.mkdtemp(), loss, llama(), max_tokens=budget,
        per_device_train_batch_size=8 // processes, **more,
    )  # fmt: skip
    trainer.given = [own_rows(loss, processes, rank)]
    made = [len(part.rows) for part in trainer.update.microbatches.split(trainer.given[0])]
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    row = trainer.state.log_history[0]
    metrics = {n: row[n] for n in ("loss", "grad_norm", "entropy", "num_tokens")}
    return {n: weight.detach() for n, weight in model.named_parameters()}, made, metrics


def critic_step(processes: int, rank: int, budget: int) -> dict[str, Any]:
    """The critic after two steps of plain gradient descent on this process's rows."""
    trainer = make_ours(tempfile.mkdtemp(), model=llama(), max_tokens=budget)
    critic = Critic(trainer, trainer.model, PPO(value_clip=1e9), trainer.update.microbatches)
    critic._optimizer = torch.optim.SGD(critic._model.parameters(), lr=0.05)
    whole = rows_to_train(step_inputs(EPISODES))
    rows = own_rows(LossSettings(), processes, rank)
    rows = replace(rows, returns=(rows.ids % 3 * rows.trained).float())
    for _ in range(2):  # the first step moves the head alone, which starts at 0
        rows = replace(rows, values=critic.values(rows))
        figures = critic.learn(rows, float(whole.trained.sum()))
        figures |= critic.explained_variance(rows)
    model = trainer.accelerator.unwrap_model(critic._model)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return {"weights": weights, "figures": figures}


def main(out: str) -> None:
    """Write the weights of every loss, and the passes of every process."""
    processes, rank = PartialState(cpu=True).num_processes, PartialState().process_index
    results = {}
    for loss in LOSSES:
        for budget in BUDGETS:
            weights, rows, metrics = step(loss, processes, rank, budget)
            results[loss, budget] = {
                "weights": weights, "rows": gather_object([rows]), "metrics": metrics
            }  # fmt: skip
    for budget in (10_000, 60):
        results["critic", budget] = critic_step(processes, rank, budget)
    if PartialState().is_main_process:
        torch.save(results, out)


if __name__ == "__main__":
    main(sys.argv[1])
