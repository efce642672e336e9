"""SFT over episodes, with the loss masks of RL.

Rows are ids and labels, so no template is applied and nothing is tokenized again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from trl import SFTConfig as TrlSFTConfig
from trl import SFTTrainer

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import check_arguments
from agentgym_train.config.learn import AgentEvolConfig, SFTConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.data.datasets import check_rows
from agentgym_train.data.tokenize import IGNORED
from agentgym_train.models.adapters import adapters_for, lora_config
from agentgym_train.models.setup import evaluating
from agentgym_train.training.loss import likelihood_loss
from agentgym_train.training.rows import TokenRows
from agentgym_train.training.trainer import UNUSED, UpdatingTrainer, row_order, shared_values

Row = Mapping[str, list[int]]
"""`input_ids` (T,) and `labels` (T,), -100 without loss; see `tokenize.training_row`."""


class AgentSFTTrainer(UpdatingTrainer, SFTTrainer):
    """Trains a policy by SFT. The rows of a step depend on the seed and the step alone."""

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
        self.rows = rows
        self.order = row_order(
            len(rows), steps * config.rows_per_step, config.seed, shuffle=config.shuffle
        )
        self.rows_per_step = config.rows_per_step
        if config.packing:
            check_packing(model)
        super().__init__(
            model=model,
            processing_class=tokenizer,
            train_dataset=UNUSED.select_columns(["input_ids", "labels"]),
            args=sft_config(config, steps, checkpoints),
            peft_config=adapters_for(model, tokenizer, config.lora),
        )
        self.start_updates(
            likelihood_loss,
            max_tokens=config.max_tokens_per_microbatch,
            shared_rows=config.packing,
        )

    def updates_of(self, step: int) -> list[TokenRows]:
        """The step's rows of this process; the loss is the mean over the tokens of all."""
        rows = [self.rows[n] for n in own_share(self, self.order, self.rows_per_step, step)]
        trained = [[int(label != IGNORED) for label in row["labels"]] for row in rows]
        batch = TokenRows.from_lists(
            [row["input_ids"] for row in rows], trained, self.accelerator.device
        )
        tokens = int(self.accelerator.reduce(batch.trained.sum(), "sum"))
        return [replace(batch, weights=batch.trained / max(1, tokens), tokens=tokens)]


def own_share(trainer: Any, order: Sequence[int], per_step: int, step: int) -> Sequence[int]:
    """This process's part of a step, from the order of all steps."""
    size = per_step // trainer.accelerator.num_processes
    first = step * per_step + trainer.accelerator.process_index * size
    return order[first : first + size]


@torch.no_grad()
def check_packing(model: Any) -> None:
    """Raise `ConfigError` if packed episodes would influence each other in this model.

    Runs the model: two short texts in one row must give the same result as each of them alone.
    """
    length = 8
    device = next(model.parameters()).device
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = torch.arange(2 * length, device=device)[None] % vocabulary  # (1, 2 length)
    positions = torch.arange(length, device=device).repeat(2)[None]  # (1, 2 length)
    with evaluating(model):
        together = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, length:]
        alone = model(input_ids=ids[:, length:], use_cache=False).logits[0]
    if not torch.allclose(together, alone, rtol=1e-2, atol=1e-2):
        raise ConfigError(
            f"packing: the output of {type(model).__name__} for a text depends on the text before "
            "it in its row. Set packing: false; rows are then padded"
        )


def imitate(model: Any, tokenizer: Any, rows: Sequence[Row], config: SFTConfig) -> dict[str, float]:
    """Train `model` on rows in place and save it to the config's folder; returns the metrics.

    For scripts that create rows themselves; `agentgym train` keeps a run folder and can resume.
    """
    settings = replace(config, trainer_args={"save_strategy": "no", **config.trainer_args})
    trainer = AgentSFTTrainer(model, tokenizer, rows, settings, Path(config.output_dir))
    metrics: dict[str, float] = trainer.train().metrics
    trainer.save_model(config.output_dir)
    return metrics


def sft_config(config: SFTConfig, steps: int, checkpoints: Path) -> TrlSFTConfig:
    """TRL's config of a run; `config.trainer_args` override it."""
    values = {
        **shared_values(config, config.rows_per_step, steps, checkpoints),
        # The rows are ids with labels, and not TRL's dataset.
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "max_length": None,
        "trust_remote_code": False,
    }
    return TrlSFTConfig(**{**values, **config.trl_args})


def check_sft(config: SFTConfig | AgentEvolConfig) -> None:
    """Raise `ConfigError` for arguments that the libraries do not take."""
    check_trl_arguments(config, TrlSFTConfig)


def check_trl_arguments(config: RunConfig, kind: type) -> None:
    """Raise `ConfigError` for arguments that the libraries do not take; `kind` is TRL's config."""
    check_arguments("trainer_args", config.trl_args, kind)
    lora_config(config.lora)
