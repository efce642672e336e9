"""One step of plain gradient descent for several losses, on as many processes as it is started on.

Run by test_update_distributed: `python -m torch.distributed.run --nproc_per_node N THIS OUT`.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from agentgym_train.algorithms.gae import PPO, CriticTargets
from agentgym_train.training.critic import Critic
from agentgym_train.training.update import PackedUpdate
from tests.train.ragged_rows import episodes, llama, make_trainer, padded

LOSSES = ("dapo", "grpo", "bnpo", "dr_grpo", "entropy bonus")


def play(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
    """The episodes of each prompt, which differ much between the prompts."""
    seen: Counter[str] = Counter()
    rows = []
    for prompt in prompts:
        group = episodes(4, seed=int(prompt), max_turns=3 + 9 * int(prompt))
        rows.append(group[seen[prompt]])
        seen[prompt] += 1
    masks = [mask for _, _, mask in rows]
    trainer.score_only(masks)
    return {
        "prompt_ids": [prompt for prompt, _, _ in rows],
        "completion_ids": [completion for _, completion, _ in rows],
        "env_mask": masks,
        "logprobs": [[0.0] * len(mask) for mask in masks],
        "given": [float(len(mask) % 3) for mask in masks],
    }


BUDGETS = (10_000, 110, 60)


def step(loss: str, processes: int, budget: int) -> tuple[dict[str, Any], list[int]]:
    """(the weights after the step, rows of each pass of this process)."""
    settings = {} if loss == "entropy bonus" else {"loss_type": loss}
    trainer = make_trainer(
        PackedUpdate, tempfile.mkdtemp(), llama(), rollout_func=play,
        per_device_train_batch_size=8 // processes, **settings,
    )  # fmt: skip
    trainer.entropy_bonus = 0.01 if loss == "entropy bonus" else 0.0
    trainer.max_tokens_per_microbatch = budget
    made: list[list[int]] = []
    passes = trainer.passes

    def recorded(*given: Any, **options: Any) -> Any:
        found = passes(*given, **options)
        made.append([len(rows) for rows in found])
        return found

    trainer.passes = recorded
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: weight.detach() for name, weight in model.named_parameters()}, made[-1]


def critic_step(processes: int, rank: int, budget: int) -> dict[str, Any]:
    """The critic after two steps of plain gradient descent on this process's rows."""
    trainer = make_trainer(PackedUpdate, tempfile.mkdtemp(), llama())
    trainer.max_tokens_per_microbatch = budget
    critic = Critic(trainer, trainer.model, PPO(value_clip=1e9))
    critic._optimizer = torch.optim.SGD(critic._model.parameters(), lr=0.05)
    rows = padded(episodes(8, seed=5, max_turns=9))
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], 1)
    attention = torch.cat([rows["prompt_mask"], rows["completion_mask"]], 1)
    mask = torch.cat([torch.zeros_like(rows["prompt_mask"]), rows["tool_mask"]], 1).bool()
    mine = slice(rank * 8 // processes, (rank + 1) * 8 // processes)
    targets = CriticTargets((ids % 3 * mask).float()[mine], mask[mine])
    for _ in range(2):  # the first step moves the head alone, which starts at 0
        old = critic.values(ids[mine], attention[mine], mask[mine])
        figures = critic.learn(ids[mine], attention[mine], old, targets, float(mask.sum()))
        figures |= critic.explained_variance(old, targets)
    model = trainer.accelerator.unwrap_model(critic._model)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return {"weights": weights, "figures": figures}


def main(out: str) -> None:
    """Write the weights of every loss, and the passes of every process."""
    processes = PartialState(cpu=True).num_processes
    results = {}
    for loss in LOSSES:
        for budget in BUDGETS:
            weights, rows = step(loss, processes, budget)
            results[loss, budget] = {"weights": weights, "rows": gather_object([rows])}
    rank = PartialState().process_index
    for budget in (10_000, 60):
        results["critic", budget] = critic_step(processes, rank, budget)
    if PartialState().is_main_process:
        torch.save(results, out)


if __name__ == "__main__":
    main(sys.argv[1])
