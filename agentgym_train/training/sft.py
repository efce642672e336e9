"""SFT: TRL's SFTTrainer over episodes, with the loss masks of RL.

Rows are ids and labels, so no template is applied and nothing is tokenized again. A step is
computed in micro-batches of rows of similar length, each by a call of TRL's own loss. Neither loss
nor gradient depends on how a step is divided, or whether rows are padded or packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import SFTConfig as TrlSFTConfig
from trl import SFTTrainer

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import check_arguments
from agentgym_train.config.learn import AgentEvolConfig, SFTConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.data.datasets import check_rows
from agentgym_train.data.tokenize import IGNORED
from agentgym_train.models.adapters import adapters_for, finish_adapters, lora_config
from agentgym_train.models.distributed import GatheredModel
from agentgym_train.training.finite import FiniteSteps
from agentgym_train.training.microbatches import (
    check_router_loss,
    loss_in_microbatches,
    make_microbatches,
    summed,
)
from agentgym_train.training.packing import (
    Layout,
    backbone_of,
    check_packing,
    hidden_states_at,
    pack,
    packed_positions,
    shares_rows_of,
)
from agentgym_train.training.task_order import row_order
from agentgym_train.training.trl_values import shared_values

Row = Mapping[str, list[int]]
"""`input_ids` (T,) and `labels` (T,), -100 without loss; see `tokenize.training_row`."""


class AgentSFTTrainer(FiniteSteps, SFTTrainer):
    """Trains a policy by SFT. The rows of a step depend on the seed and the step alone."""

    _total_train_tokens: int
    """TRL's counter."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        rows: Sequence[Row],
        config: SFTConfig,
        checkpoints: Path,
    ) -> None:
        check_rows(rows)
        steps = config.steps_of(len(rows))
        order = row_order(
            len(rows), steps * config.rows_per_step, config.seed, shuffle=config.shuffle
        )
        if config.packing:
            check_packing(model)
        self._config = config
        self._packing = config.packing
        super().__init__(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([dict(row) for row in rows]).select(order),
            args=sft_config(config, steps, checkpoints),
            peft_config=adapters_for(model, tokenizer, config.lora),
        )
        finish_adapters(self)
        check_router_loss(self)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """TRL's loss of all rows; all micro-batches but the last have run their backward pass."""
        if return_outputs or num_items_in_batch is None or self._needs_one_batch():
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        ids, attention = inputs["input_ids"], inputs["attention_mask"]  # (R, W)
        trained = inputs["labels"] != IGNORED  # (R, W)
        core = self.accelerator.unwrap_model(model)
        shared = shares_rows_of(core) if self._packing is None else self._packing
        microbatches = make_microbatches(
            self.accelerator,
            self.model,
            attention.sum(1).tolist(),
            self._config.max_tokens_per_microbatch,
            shared_rows=shared,
        )
        counts = torch.stack([trained[rows].sum() for rows in microbatches])  # (micro-batches,)
        trl_loss = super().compute_loss

        def loss_of(rows: list[int]) -> Tensor:
            layout = pack(ids[rows], attention[rows], trained[rows], shared_rows=shared)
            with hidden_states_at(backbone_of(core), layout):
                return trl_loss(model, _inputs(layout), num_items_in_batch=num_items_in_batch)

        metrics, seen = self._metrics["train"], self._total_train_tokens
        weights = summed(self.accelerator, counts)
        loss = loss_in_microbatches(
            self.accelerator, model, microbatches, loss_of, metrics, weights
        )
        # TRL counts the columns of a micro-batch, padding included.
        tokens = sum(summed(self.accelerator, attention.sum()[None]))
        self._total_train_tokens = seen + int(tokens)
        metrics["num_tokens"] = [self._total_train_tokens]
        return loss

    def _needs_one_batch(self) -> bool:
        """Whether the loss requires all rows, or all logits, in one model call."""
        smoothed = self.label_smoother is not None and self.args.loss_type == "nll"
        return smoothed or self.aux_loss_enabled or self.compute_loss_func is not None

    def gathered_model(self) -> Any:
        """The model in a form that one process can call alone. A collective."""
        return GatheredModel().of(self.accelerator.unwrap_model(self.model))

    def close(self) -> None:
        """Nothing to release."""


def imitate(model: Any, tokenizer: Any, rows: Sequence[Row], config: SFTConfig) -> dict[str, float]:
    """Train `model` on rows in place and save it to the config's folder; returns TRL's metrics.

    For scripts that create rows themselves; `agentgym train` keeps a run folder and can resume.
    """
    settings = replace(config, trainer_args={"save_strategy": "no", **config.trainer_args})
    trainer = AgentSFTTrainer(model, tokenizer, rows, settings, Path(config.output_dir))
    metrics: dict[str, float] = trainer.train().metrics
    trainer.check_weights()
    trainer.save_model(config.output_dir)
    return metrics


def sft_config(config: SFTConfig, steps: int, checkpoints: Path) -> TrlSFTConfig:
    """TRL's config of a run; `config.trainer_args` override it."""
    values = {
        **shared_values(config, config.rows_per_step, steps, checkpoints),
        # The dataset is in the order of the steps already, and its rows are ids with labels.
        "train_sampling_strategy": "sequential",
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "max_length": None,
        "trust_remote_code": False,
    }
    return TrlSFTConfig(**{**values, **config.trl_args})


def _inputs(layout: Layout) -> dict[str, Any]:
    """The inputs of TRL's loss for one micro-batch: only the scored tokens are labels."""
    positions = packed_positions(layout)
    if not positions:
        columns = torch.arange(layout.input_ids.shape[1], device=layout.input_ids.device)
        positions = {"position_ids": columns.expand_as(layout.input_ids)}  # (R, L)
    return {
        "input_ids": layout.input_ids,
        "shift_labels": layout.labels[None],  # (1, S)
        **positions,
    }


def check_sft(config: SFTConfig | AgentEvolConfig) -> None:
    """Raise `ConfigError` for arguments that the libraries do not take."""
    check_libraries(config, TrlSFTConfig)


def check_libraries(config: RunConfig, kind: type) -> None:
    """Raise `ConfigError` for arguments that the libraries do not take; `kind` is TRL's config."""
    check_arguments("trainer_args", config.trl_args, kind)
    if config.trainer_args.get("activation_offloading") and not torch.cuda.is_available():
        raise ConfigError(
            "trainer_args.activation_offloading moves activations from a GPU, and there is none "
            "here; leave it out"
        )
    lora_config(config.lora)
