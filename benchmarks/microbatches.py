"""SFT and DPO micro-batches: ours beside TRL's gradient accumulation, padding-free and packing.

    OMP_NUM_THREADS=1 python benchmarks/microbatches.py

One optimizer step on the same rows of very different length, in float32 on a small model: the loss
that is logged, the largest difference of a gradient from that of one padded batch, and the median
time of a step. An episode whose context was reset has several rows, which lie beside each other.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback
from trl import DPOTrainer, SFTTrainer

from agentgym_train.config.learn import DPOConfig, SFTConfig
from agentgym_train.models.loading import quiet_libraries
from agentgym_train.training.dpo import AgentDPOTrainer, dpo_config
from agentgym_train.training.sft import AgentSFTTrainer, sft_config

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.small_models import small_policy, small_tokenizer

ROWS = 32
SHARED: dict[str, Any] = {
    "save_strategy": "no", "max_grad_norm": 0.0, "optim": "sgd", "lr_scheduler_type": "constant",
}  # fmt: skip
Gradients = dict[str, Tensor]


class Watch(TrainerCallback):
    """Keeps the first step's gradients, and the time of each step."""

    def __init__(self) -> None:
        self.gradients: Gradients = {}
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Stop the clock, and keep the gradients of the first step."""
        self.seconds.append(time.perf_counter() - self._began)
        if not self.gradients:
            named = given["model"].named_parameters()
            self.gradients = {name: weight.grad.clone() for name, weight in named}


def main() -> None:
    """Print a table for SFT and one for DPO."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longest", type=int, default=1500, help="tokens of the longest row")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--budget", type=int, default=4096, help="max_tokens_per_microbatch")
    given = parser.parse_args()
    quiet_libraries()
    warnings.simplefilter("ignore")
    tokenizer = small_tokenizer(["a few words"], 300)
    rows = sft_rows(ROWS * given.steps, given.longest, random.Random(0))
    budget = given.budget
    # The most rows that fit into the budget whatever rows they are, and that divide a step.
    fitting = max(n for n in (1, 2, 4, 8, 16, 32) if n == 1 or n * given.longest <= budget)
    table(
        f"SFT, {ROWS} rows per step",
        {
            "one padded batch": lambda: sft(tokenizer, rows, given, stock=ROWS),
            f"ours, at most {budget} tokens": lambda: sft(tokenizer, rows, given),
            f"TRL, accumulation of {fitting} rows": lambda: sft(
                tokenizer, rows, given, stock=fitting
            ),
            "TRL, accumulation of 1 row": lambda: sft(tokenizer, rows, given, stock=1),
            "TRL, padding_free, sdpa": lambda: sft(
                tokenizer, rows, given, stock=2, padding_free=True
            ),
            f"TRL, packing to {given.longest}, sdpa": lambda: sft(
                tokenizer, rows, given, stock=2, packing=True, max_length=given.longest,
                dataset_kwargs={},
            ),
        },
    )  # fmt: skip
    pairs = [
        pair(row) for row in sft_rows(ROWS // 2 * given.steps, given.longest, random.Random(1))
    ]
    table(
        f"DPO, {ROWS // 2} pairs per step",
        {
            "one padded batch": lambda: dpo(tokenizer, pairs, given, stock=ROWS // 2),
            f"ours, at most {budget} tokens": lambda: dpo(tokenizer, pairs, given),
            "TRL, accumulation of 1 pair": lambda: dpo(tokenizer, pairs, given, stock=1),
        },
    )


def table(title: str, ways: Any) -> None:
    """Run each way and print its figures beside those of the first."""
    print(f"{title:<42}{'loss':>12}{'gradient off by':>18}{'ms a step':>11}{'accuracy':>10}")
    expected: Gradients = {}
    for name, run in ways.items():
        loss, accuracy, watch = run()
        expected = expected or watch.gradients
        off = max(float((watch.gradients[n] - g).abs().max()) for n, g in expected.items())
        ms = 1000 * statistics.median(watch.seconds)
        print(f"{name:<42}{loss:>12.6f}{off:>18.1e}{ms:>11.0f}{accuracy:>10.4f}", flush=True)


def sft_rows(count: int, longest: int, draw: random.Random) -> list[dict[str, list[int]]]:
    """Episodes of alternating observations and responses, of 16 to `longest` tokens."""
    rows = []
    for _ in range(count):
        length = int(16 * (longest / 16) ** draw.random())
        ids = [draw.randrange(3, 250) for _ in range(length)]
        labels = [i if position % 20 >= 12 else -100 for position, i in enumerate(ids)]
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def pair(row: dict[str, list[int]]) -> dict[str, list[int]]:
    """A pair whose rejected side is half as long as the chosen one."""
    ids = row["input_ids"]
    mask = [int(label >= 0) for label in row["labels"]]
    half = 8 + (len(ids) - 8) // 2
    return {
        "prompt_ids": ids[:8], "chosen_ids": ids[8:], "chosen_mask": mask[8:],
        "rejected_ids": ids[8:half][::-1], "rejected_mask": [1] * (half - 8),
    }  # fmt: skip


def model_of(tokenizer: Any) -> Any:
    """The same weights each time."""
    return small_policy(tokenizer, layers=4, hidden=128, heads=4)


def sft(
    tokenizer: Any, rows: Sequence[Any], given: Any, stock: int = 0, **changes: Any
) -> tuple[float, float, Watch]:
    """(loss, accuracy, watch) of our trainer, or of TRL's own with `stock` rows per forward."""
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            model="m", data=["d"], output_dir=folder, rows_per_step=ROWS, steps=given.steps,
            shuffle=False, learning_rate=1e-9, trainer_args={"warmup_steps": 0, **SHARED},
            max_tokens_per_microbatch=given.budget,
        )  # fmt: skip
        if stock:
            args = sft_config(config, given.steps, Path(folder))
            rate = {"per_device_train_batch_size": stock}
            rate["gradient_accumulation_steps"] = ROWS // stock
            order = {"train_sampling_strategy": "sequential"}
            for name, value in {**rate, **order, **changes}.items():
                setattr(args, name, value)
            trainer: Any = SFTTrainer(
                model=model_of(tokenizer), processing_class=tokenizer, args=args,
                train_dataset=Dataset.from_list([dict(row) for row in rows]),
            )  # fmt: skip
        else:
            trainer = AgentSFTTrainer(model_of(tokenizer), tokenizer, rows, config, Path(folder))
        return _fit(trainer, "mean_token_accuracy")


def dpo(
    tokenizer: Any, rows: Sequence[Any], given: Any, stock: int = 0
) -> tuple[float, float, Watch]:
    """The same of DPO."""
    with tempfile.TemporaryDirectory() as folder:
        config = DPOConfig(
            model="m", data=["d"], output_dir=folder, pairs_per_step=ROWS // 2, steps=given.steps,
            learning_rate=1e-9, trainer_args={"warmup_steps": 0, **SHARED},
            max_tokens_per_microbatch=given.budget,
        )  # fmt: skip
        trainer: Any = AgentDPOTrainer(model_of(tokenizer), tokenizer, rows, config, Path(folder))
        if stock:
            ordered = [dict(trainer.rows[n]) for n in trainer.order]
            args = dpo_config(config, given.steps, Path(folder))
            args.per_device_train_batch_size = stock
            args.gradient_accumulation_steps = ROWS // 2 // stock
            args.train_sampling_strategy = "sequential"
            args.remove_unused_columns = False
            trainer = Stock(
                model=model_of(tokenizer), ref_model=model_of(tokenizer), args=args,
                processing_class=tokenizer, train_dataset=Dataset.from_list(ordered),
                data_collator=collated,
            )  # fmt: skip
        return _fit(trainer, "rewards/accuracies")


class Stock(DPOTrainer):
    """TRL's trainer, over rows that are ids already."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def collated(pairs: Sequence[Any]) -> dict[str, Tensor]:
    """Pairs as TRL pads them: the chosen rows, then the rejected ones; (2 P, W) each."""
    sides = [(row, side) for side in ("chosen", "rejected") for row in pairs]
    ids = [torch.tensor([*row["prompt_ids"], *row[f"{side}_ids"]]) for row, side in sides]
    masks = [
        torch.tensor([*[0] * len(row["prompt_ids"]), *row[f"{side}_mask"]]) for row, side in sides
    ]
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(i) for i in ids], batch_first=True),
        "completion_mask": pad_sequence(masks, batch_first=True),
    }


def _fit(trainer: Any, accuracy: str) -> tuple[float, float, Watch]:
    watch = Watch()
    trainer.add_callback(watch)
    trainer.train()
    first = trainer.state.log_history[0]
    return float(first["loss"]), float(first[accuracy]), watch


if __name__ == "__main__":
    main()
