"""Two steps of RL with a reference, with weights that FSDP2 shards, on any number of processes.

Run by test_update_distributed: `python -m torch.distributed.run --nproc_per_node N THIS OUT`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from peft import LoraConfig

from agentgym_train.training.loss import RLLoss
from agentgym_train.training.rows import TokenRows
from agentgym_train.training.trainer import UNUSED
from agentgym_train.training.trl_rollout import trajectory_reward
from agentgym_train.training.update import Reference
from tests.train.ragged_rows import (
    DEFAULT,
    TEMPERATURE,
    Bare,
    llama,
    trl_config,
)
from tests.train.small import textcraft_tokenizer
from tests.train.two_processes import own_rows

LORA = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


class WithReference(Bare):
    """Trains on the given rows, and asks the reference in each step."""

    def updates_of(self, step: int) -> list[TokenRows]:
        """The rows, without log-probabilities from before the step."""
        (rows,) = self.given
        found = self.copied.logprobs(self.update, rows)
        return [replace(rows, old=None, reference=found)]


def steps(lora: dict[str, Any] | None) -> dict[str, Any]:
    """The metrics of two steps, and the trained weights after them."""
    processes = int(os.environ["WORLD_SIZE"])
    model = llama()
    reference = Reference(model, lora, TEMPERATURE)
    trainer = WithReference(
        model=model,
        processing_class=textcraft_tokenizer(),
        args=trl_config(
            tempfile.mkdtemp(), per_device_train_batch_size=8 // processes, max_steps=2,
            learning_rate=5.0 if lora else 0.5,
        ),
        train_dataset=UNUSED.select_columns(["prompt"]),
        reward_funcs=[trajectory_reward],
        peft_config=None if lora is None else LoraConfig(**lora),
    )  # fmt: skip
    assert trainer.accelerator.distributed_type == DistributedType.FSDP
    trainer.start_updates(RLLoss(DEFAULT, beta=0.5), max_tokens=60, temperature=TEMPERATURE)
    reference.prepare(trainer)
    trainer.copied = reference
    trainer.given = [own_rows(DEFAULT, processes, trainer.accelerator.process_index)]
    trainer.train()
    rows = trainer.state.log_history[:2]
    whole = trainer.gathered_model()
    return {
        "metrics": [
            {n: row[n] for n in ("loss", "grad_norm", "kl", "entropy", "num_tokens")}
            for row in rows
        ],
        "weights": {n: weight.detach().clone() for n, weight in whole.named_parameters()},
    }


def shard_on_cpus() -> None:
    """Let accelerate shard on CPUs, where it would give each process the whole model."""
    connect = PartialState.__init__

    def connected(self: PartialState, *arguments: Any, **options: Any) -> None:
        connect(self, *arguments, **options)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = connected


if __name__ == "__main__":
    shard_on_cpus()
    found = {"all weights": steps(None), "adapters": steps(LORA)}
    if PartialState().is_main_process:
        torch.save(found, sys.argv[1])
