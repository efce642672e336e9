"""What the trainers of all methods have in common: UpdatingTrainer, TRL's settings, row order.

It overrides only what transformers documents for overriding. Models, adapters, optimizer,
distribution, checkpoints and logging are TRL's, transformers' and Accelerate's.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from datasets.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, set_seed
from transformers.modeling_layers import GradientCheckpointingLayer

from agentgym_env.errors import ConfigError
from agentgym_train.config.run import RunConfig
from agentgym_train.models.adapters import check_trained_tokens
from agentgym_train.models.distributed import GatheredModel
from agentgym_train.training.finite import check_gradient, check_loss, check_weights
from agentgym_train.training.head import add_scoring, check_scoring
from agentgym_train.training.loss import Loss
from agentgym_train.training.rows import TokenRows
from agentgym_train.training.update import Update

UNUSED = Dataset.from_list(
    [{"prompt": "a", "chosen": "b", "rejected": "c", "input_ids": [0], "labels": [0]}]
)
"""TRL's constructors demand a dataset. Rows come from `updates_of`."""


class UpdatingTrainer(Trainer):
    """A `Trainer` whose training step is an `Update`; it stops at numbers that are not finite."""

    update: Update

    def __init__(self, *, args: TrainingArguments, **options: Any) -> None:
        """The arguments of TRL's trainer."""
        set_seed(args.seed)  # TRL before 1.15 draws adapters from whatever the seed is
        was_disabled = are_progress_bars_disabled()
        disable_progress_bars()  # of a dataset that is not used
        try:
            super().__init__(args=args, **options)
        finally:
            if not was_disabled:
                enable_progress_bars()
        check_trained_tokens(self)

    def start_updates(
        self,
        loss: Loss,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        shared_rows: bool | None = None,
    ) -> None:
        """Finish the construction; see `Update` for `max_tokens` and `shared_rows`."""
        model = self.accelerator.unwrap_model(self.model)
        add_scoring(model, temperature)
        check_scoring(model, temperature, self.accelerator.autocast)
        self.update = Update(self, loss, max_tokens=max_tokens, shared_rows=shared_rows)
        self._figures: dict[str, float] = {}
        self._gathered_model = GatheredModel()

    def updates_of(self, step: int) -> Sequence[TokenRows]:
        """The rows of each update of a step, of this process; raises if there are none."""
        raise NotImplementedError

    def get_train_dataloader(self) -> DataLoader[Any]:
        """An empty batch per step, in every process; TRL's dataset is not used."""
        steps: list[dict[str, Any]] = [{} for _ in range(self.args.max_steps)]
        return DataLoader(steps, batch_size=1, collate_fn=lambda batch: dict(batch[0]))  # type: ignore[arg-type]

    def training_step(self, model: Any, inputs: dict[str, Any], *_: Any) -> Tensor:
        """All updates of a step but the last optimizer step, which the `Trainer` takes."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        updates = self.updates_of(self.state.global_step)
        loss, metrics = self.update.run(model, updates)
        check_loss(self, loss)
        tokens = torch.stack([rows.lengths.sum() for rows in updates]).sum()
        # The `Trainer` counts FLOPs by the size of the inputs.
        inputs["input_ids"] = torch.empty(int(tokens), device="meta")
        self.state.num_input_tokens_seen += int(self.accelerator.reduce(tokens, "sum"))
        self.add_metrics({"num_tokens": self.state.num_input_tokens_seen, **metrics})
        return loss

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Log these with the current step."""
        self._figures |= metrics

    def log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        """Log the `Trainer`'s values and the step's metrics."""
        if "grad_norm" in logs:
            check_gradient(self, logs["grad_norm"], self.state.global_step)
        if "loss" in logs:
            # Trackers and JSON have no NaN.
            logs |= {name: None if v != v else v for name, v in self._figures.items()}  # type: ignore[misc]
            self._figures = {}
        super().log(logs, *arguments, **options)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model; raises `NotFinite` if its weights cannot be used. A collective."""
        self.check_weights()
        super().save_model(output_dir, _internal_call)

    def check_weights(self) -> None:
        """Raise `NotFinite` if the trained weights cannot be used. A collective."""
        check_weights(self)

    def gathered_model(self) -> Any:
        """The unsharded model, which one process can call alone. A collective."""
        return self._gathered_model.gather(self.accelerator.unwrap_model(self.model))

    def close(self) -> None:
        """Release what the trainer holds."""


def shared_values(config: RunConfig, batch: int, steps: int, checkpoints: Path) -> dict[str, Any]:
    """The values that the methods' TRL configs have in common; `batch` is of all processes."""
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(checkpoints),
        "run_name": Path(config.output_dir).name,
        "max_steps": steps,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "linear",
        "per_device_train_batch_size": batch // PartialState().num_processes,
        "gradient_accumulation_steps": 1,
        "seed": config.seed,
        "use_cpu": not on_gpu,
        "bf16": config.computes_in(on_gpu=on_gpu) == "bfloat16",
        "gradient_checkpointing": on_gpu,
        "logging_steps": 1,
        "save_steps": config.save_every,
        "save_total_limit": 2,
        "disable_tqdm": True,
        # Every weight is used in every forward pass, so there is nothing to search for.
        "ddp_find_unused_parameters": False,
        "report_to": "none",
        "dataloader_num_workers": 0,
    }


def row_order(rows: int, wanted: int, seed: int, *, shuffle: bool = True) -> list[int]:
    """Indices of `wanted` rows over as many epochs as needed; each epoch has every row once.

    A step may span two epochs, so that all steps have the same number of rows.
    """
    order: list[int] = []
    epoch = 0
    while len(order) < wanted:
        numbers = list(range(rows))
        if shuffle:
            random.Random(f"rows/{seed}/{epoch}").shuffle(numbers)
        order += numbers
        epoch += 1
    return order[:wanted]


def compile_layers(model: Any) -> None:
    """Compile each transformer layer in place.

    Layers of one kind share their code, so that this takes a minute instead of many. The names of
    the weights stay. The hf engine samples without compiled code. Raises `ConfigError` without
    such layers or, on a CPU, a C++ compiler.
    """
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"torch_compile: {type(model).__name__} has no layers of transformers' kind; leave it "
            "out"
        )
    if next(model.parameters()).device.type == "cpu":
        named = (os.environ.get("CXX"), "g++", "clang++")
        if not any(name and shutil.which(name) for name in named):
            raise ConfigError(
                "torch_compile: a CPU needs a C++ compiler; install g++, or leave it out"
            )
    for layer in layers:
        layer.compile(dynamic=True)
