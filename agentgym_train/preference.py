"""PreferenceTrainer: TRL's DPOTrainer over pairs of episodes, with the loss masks that RL uses.

An episode's log-ratio is the sum over what the policy said, turn by turn; what the world answered
is context. TRL takes everything after the prompt for the policy's, so the rows come as ids with
masks, through a collator of ours. Losses, reference and figures are TRL's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl import DPOConfig, DPOTrainer

from agentgym_train.lora import lora_config
from agentgym_train.overrides import refuse_unknown
from agentgym_train.pair_rows import check_pairs
from agentgym_train.passes import backward, make_passes, merge_figures, rows_of, synced
from agentgym_train.preference_config import PreferenceConfig
from agentgym_train.row_order import row_order
from agentgym_train.whole_model import WholeModel

Row = Mapping[str, Any]
"""See `pair_rows.PairRows`."""
_COUPLE_PAIRS = frozenset({"aot", "aot_unpaired", "sft"})
"""TRL's losses in which a pair's loss depends on the other pairs of the batch."""


class PreferenceTrainer(DPOTrainer):
    """Teaches a policy to prefer. Which pairs a step has depends on the seed and the step alone."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        rows: Sequence[Row],
        config: PreferenceConfig,
        checkpoints: Path,
    ) -> None:
        check_pairs(rows)
        steps = config.steps_of(len(rows))
        order = row_order(len(rows), steps * config.pairs_per_step, config.seed)
        args = dpo_config(config, steps, checkpoints)
        # Adapters are switched off for the reference, and figures made before need none.
        needs_copy = config.lora is None and not args.precompute_ref_log_probs
        self._tokens_per_forward = config.tokens_per_forward
        super().__init__(
            model=model,
            ref_model=copy.deepcopy(model) if needs_copy else None,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([dict(row) for row in rows]).select(order),
            args=args,
            data_collator=PairCollator(tokenizer.pad_token_id),
            peft_config=lora_config(config.lora),
        )

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        # The rows are ids already.
        return dataset

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        # The order is laid down already.
        return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)

    def _compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False
    ) -> Any:
        """TRL's loss of all pairs. All passes but the last have had their backward pass already."""
        if return_outputs or self.aux_loss_enabled or _COUPLE_PAIRS & set(self.loss_types):
            return super()._compute_loss(model, inputs, return_outputs)
        lengths = inputs["attention_mask"].sum(1)  # (2 P,)
        longest = torch.stack(lengths.chunk(2)).amax(0)  # (P,)
        count = len(longest)
        passes = make_passes(
            self.accelerator,
            (2 * longest).tolist(),
            self._tokens_per_forward,
            shared_rows=False,
        )
        figures = self._metrics["train"]
        before = {name: len(values) for name, values in figures.items()}
        computed = torch.zeros((), device=longest.device)
        for number, pairs in enumerate(passes, 1):
            rows = [*pairs, *(pair + count for pair in pairs)]
            part = _narrowed(rows_of(inputs, rows), int(longest[pairs].max()))
            is_last = number == len(passes)
            with synced(self.accelerator, model, is_last):
                loss = super()._compute_loss(model, part, False) * (len(pairs) / count)
                if not is_last:
                    backward(self.accelerator, loss)
            computed = computed + loss.detach()
        merge_figures(figures, before, [len(pairs) for pairs in passes])
        return loss + (computed - loss.detach())

    def whole_model(self) -> Any:
        """The model as one process may call it alone. A collective."""
        return WholeModel().of(self.accelerator.unwrap_model(self.model))

    def close(self) -> None:
        """Nothing is held."""


class PairCollator:
    """Pads pairs as TRL does: the chosen rows, then the rejected ones; the mask is the policy's."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, examples: Sequence[Row]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and `completion_mask`, (2 P, W) each."""
        ids: list[Tensor] = []
        masks: list[Tensor] = []
        for side in ("chosen", "rejected"):
            for row in examples:
                prompt = row["prompt_ids"]
                ids.append(torch.tensor([*prompt, *row[f"{side}_ids"]]))
                masks.append(torch.tensor([*[0] * len(prompt), *row[f"{side}_mask"]]))
        given = {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self._pad_id),
            "attention_mask": pad_sequence([torch.ones_like(i) for i in ids], batch_first=True),
            "completion_mask": pad_sequence(masks, batch_first=True),
        }
        for name in ("ref_chosen_logps", "ref_rejected_logps"):
            if name in examples[0]:
                given[name] = torch.tensor([row[name] for row in examples])
        return given


def dpo_config(config: PreferenceConfig, steps: int, checkpoints: Path) -> DPOConfig:
    """TRL's own config for a run; `config.trl` has the last word."""
    on_gpu = torch.cuda.is_available()
    values: dict[str, Any] = {
        "output_dir": str(checkpoints),
        "max_steps": steps,
        "beta": config.beta,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": config.warmup_steps,
        "per_device_train_batch_size": config.pairs_per_step // PartialState().num_processes,
        "gradient_accumulation_steps": 1,
        "seed": config.seed,
        "use_cpu": not on_gpu,
        "bf16": config.computes_in(on_gpu=on_gpu) == "bfloat16",
        "gradient_checkpointing": on_gpu,
        "max_length": None,
        # Which are the rows' own.
        "remove_unused_columns": False,
        "logging_steps": 1,
        "save_steps": config.save_every,
        "save_total_limit": 2,
        "disable_tqdm": True,
        "ddp_find_unused_parameters": False,
        "report_to": "none",
        "dataloader_num_workers": 0,
        "trust_remote_code": False,
    }
    return DPOConfig(**{**values, **config.trl})


def check_dpo(values: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for a value that TRL's config does not have."""
    refuse_unknown(" under trl", values, (f.name for f in fields(DPOConfig)))


def _narrowed(inputs: dict[str, Any], width: int) -> dict[str, Any]:
    """The first columns of every tensor that has columns: padding of longer rows is left away."""
    return {
        name: value[:, :width] if isinstance(value, Tensor) and value.dim() > 1 else value
        for name, value in inputs.items()
    }
